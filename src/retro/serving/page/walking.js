// From word to word by keys, along a line and from line to line.

/** The word that a key leads to from this one, if any. */
export function towards(key, mark, marks) {
  const place = marks.indexOf(mark);
  if (key === "ArrowRight") return marks[place + 1];
  if (key === "ArrowLeft") return marks[place - 1];
  if (key === "Home") return marks[0];
  if (key === "End") return marks.at(-1);
  if (key === "ArrowDown") return nearest(mark, marks.slice(place + 1));
  if (key === "ArrowUp") return nearest(mark, marks.slice(0, place).reverse());
  return undefined;
}

/** Of words that follow in this direction, the one on the next line that stands closest to this one. */
function nearest(mark, others) {
  const { left, top, height } = mark.getBoundingClientRect();
  let best;
  for (const other of others) {
    const there = other.getBoundingClientRect();
    if (Math.abs(there.top - top) < height / 2) continue;
    if (best && Math.abs(there.top - best.top) > height / 2) break;
    const away = Math.abs(there.left - left);
    if (!best || away < best.away) best = { mark: other, top: there.top, away };
  }
  return best?.mark;
}
