// What changed between two texts, word by word (Myers' O(ND) algorithm).

/**
 * The way from one list of words to another: `{ kind, before, after }` in the order of the texts, where kind
 * is "same", "removed" or "added", and the numbers are the words' places (none where a text has none).
 */
export function diff(before, after) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head++;
  let tail = 0;
  while (
    tail < Math.min(before.length, after.length) - head &&
    before[before.length - 1 - tail] === after[after.length - 1 - tail]
  )
    tail++;
  const middle = shortest(before.slice(head, before.length - tail), after.slice(head, after.length - tail));
  const same = (from, to, length) =>
    Array.from({ length }, (_, index) => ({ kind: "same", before: from + index, after: to + index }));
  const moved = middle.map(({ kind, before: from, after: to }) => ({
    kind,
    before: from === undefined ? undefined : from + head,
    after: to === undefined ? undefined : to + head,
  }));
  return [...same(0, 0, head), ...moved, ...same(before.length - tail, after.length - tail, tail)];
}

/** The fewest steps between two lists. */
function shortest(before, after) {
  const limit = before.length + after.length;
  // For each diagonal (words of `before` minus words of `after`), how far along `before` one has come.
  let reached = new Map([[1, 0]]);
  const history = [];
  for (let cost = 0; cost <= limit; cost++) {
    history.push(new Map(reached));
    for (let diagonal = -cost; diagonal <= cost; diagonal += 2) {
      let from = isAddition(reached, diagonal, cost)
        ? reached.get(diagonal + 1)
        : reached.get(diagonal - 1) + 1;
      while (
        from < before.length &&
        from - diagonal < after.length &&
        before[from] === after[from - diagonal]
      ) {
        from++;
      }
      reached.set(diagonal, from);
      if (from >= before.length && from - diagonal >= after.length) {
        return walkBack(history, before.length, after.length);
      }
    }
  }
  return [];
}

/** Whether the furthest way to a diagonal comes from adding a word, rather than from removing one. */
function isAddition(reached, diagonal, cost) {
  if (diagonal === -cost) return true;
  if (diagonal === cost) return false;
  return reached.get(diagonal - 1) < reached.get(diagonal + 1);
}

function walkBack(history, from, to) {
  const steps = [];
  for (let cost = history.length - 1; cost >= 0; cost--) {
    const reached = history[cost];
    const diagonal = from - to;
    const added = isAddition(reached, diagonal, cost);
    const previous = added ? diagonal + 1 : diagonal - 1;
    const start = reached.get(previous);
    while (from > start && to > start - previous) {
      from--;
      to--;
      steps.push({ kind: "same", before: from, after: to });
    }
    if (cost === 0) break;
    if (added) steps.push({ kind: "added", before: undefined, after: --to });
    else steps.push({ kind: "removed", before: --from, after: undefined });
  }
  return steps.reverse();
}

/**
 * The steps in runs `{ kind, before: [places], after: [places] }` that can be read: in a stretch that was
 * written anew, a word or two that happen to stand in both texts are part of the change, and what was
 * removed comes before what was added.
 */
export function changes(steps, shortestSame = 3) {
  const runs = [];
  for (const step of steps) {
    const kind = step.kind === "same" ? "same" : "changed";
    if (runs.at(-1)?.kind !== kind) runs.push({ kind, before: [], after: [] });
    if (step.before !== undefined) runs.at(-1).before.push(step.before);
    if (step.after !== undefined) runs.at(-1).after.push(step.after);
  }
  const isIsland = (run, index) =>
    run.kind === "same" && run.before.length < shortestSame && index > 0 && index < runs.length - 1;
  const result = [];
  for (const [index, run] of runs.entries()) {
    const kind = isIsland(run, index) ? "changed" : run.kind;
    const last = result.at(-1);
    if (last?.kind === kind) {
      last.before.push(...run.before);
      last.after.push(...run.after);
    } else {
      result.push({ kind, before: [...run.before], after: [...run.after] });
    }
  }
  return result;
}
