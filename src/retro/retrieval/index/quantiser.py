"""Training what compressed keys are made of: a rotation, centres of lists, and tables of pieces of keys.

All of it runs on one thread and from fixed seeds: sums in another order would give other numbers, and the
same keys must give the same index.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import faiss
import numpy as np

from retro.retrieval.index.keys import Keys

BLOCK = 65_536
"""Keys that are float32 at one time, before they are rotated."""
KEYS_A_LIST = 32
"""Keys of the sample for each list."""
MIN_SAMPLE = 65_536
ROTATION_SAMPLE = 32_768
TABLE_SAMPLE = 32_768
ROUNDS = 8
"""Of every k-means. More give tables that rank hardly better, and what they find is ranked again anyway."""
HELD_OUT = 64
"""Of so many rows the last is never trained on: tuning draws its queries from these."""
ASSIGN_EFFORT = 64
"""How hard the nearest centre of a key is looked for.

With FAISS's own 16, of 154 k real keys in 1,024 lists so many were put into a wrong one that 128 lists held
0.93 of the true neighbours, and not 0.97.
"""


def train(index: faiss.IndexPreTransform, keys: Keys) -> bool:
    """Train a FAISS index `OPQ…,IVF…_HNSW…,PQ…` on a sample of the keys; whether there were enough."""
    rotation = faiss.downcast_VectorTransform(index.chain.at(0))
    lists = faiss.downcast_index(index.index)
    sample = _sample(len(keys), max(MIN_SAMPLE, KEYS_A_LIST * lists.nlist))
    if len(sample) < max(lists.nlist, lists.pq.ksub):
        return False
    with _one_thread():
        _train_rotation(rotation, lists.pq.M, _read(keys, sample[_spread(len(sample), ROTATION_SAMPLE)]))
        rotated = np.concatenate(
            [
                rotation.apply(_read(keys, sample[start : start + BLOCK]))
                for start in range(0, len(sample), BLOCK)
            ]
        )
        centres = cluster(rotated, lists.nlist)
        lists.quantizer.train(centres)
        lists.quantizer.add(centres)
        faiss.downcast_index(lists.quantizer).hnsw.efSearch = ASSIGN_EFFORT
        # Keys as they are, not their differences from the centre of the list: one table serves all lists that
        # a query visits, where differences need one for each, and re-ranking makes up for the coarser code.
        lists.by_residual = False
        _train_tables(lists.pq, rotated[_spread(len(rotated), TABLE_SAMPLE)])
    lists.is_trained = True
    index.is_trained = True
    return True


def _sample(num_keys: int, size: int) -> np.ndarray:
    """Rows to train on, in order; none of those that are held out if there are enough others."""
    rows = np.arange(num_keys)
    if num_keys > 2 * HELD_OUT:
        rows = rows[rows % HELD_OUT != HELD_OUT - 1]
    if len(rows) <= size:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, size, replace=False))


def held_out(num_keys: int) -> np.ndarray:
    """Rows that the sample never holds."""
    return np.arange(HELD_OUT - 1, num_keys, HELD_OUT)


def _spread(total: int, size: int) -> np.ndarray:
    """At most so many places, evenly spread over all."""
    return np.unique(np.linspace(0, total - 1, min(size, total)).astype(np.int64))


def _read(keys: Keys, rows: np.ndarray) -> np.ndarray:
    return np.asarray(keys[rows]).astype(np.float16).astype(np.float32)


def _train_rotation(rotation: faiss.OPQMatrix, num_pieces: int, points: np.ndarray) -> None:
    """FAISS's own training, with tables of 16 entries in place of 256: the rotation is as good, in a tenth of
    the time."""
    tables = faiss.ProductQuantizer(rotation.d_out, num_pieces, 4)
    rotation.pq = tables
    rotation.niter = ROUNDS
    rotation.niter_pq_0 = ROUNDS
    rotation.niter_pq = 2
    rotation.max_train_points = len(points)
    rotation.train(points)
    rotation.pq = None  # it would point to tables that are gone


def cluster(points: np.ndarray, num_centres: int) -> np.ndarray:
    """Centres by k-means in two steps: of √n coarse clusters each is divided in proportion to its size.

    One step would compare every point with every centre: hours for 65,536 of them.
    """
    if num_centres <= 256:
        return _kmeans(points, num_centres).centroids
    coarse = _kmeans(points, int(num_centres**0.5))
    of = coarse.index.search(points, 1)[1][:, 0]
    sizes = np.bincount(of, minlength=coarse.k)
    # What the clusters up to each have a right to together; the differences are whole and add up.
    shares = np.diff(np.cumsum(sizes) * num_centres // len(points), prepend=0)
    parts = [
        _kmeans(points[of == number], int(share)).centroids for number, share in enumerate(shares) if share
    ]
    return np.concatenate(parts)


def _kmeans(points: np.ndarray, num_centres: int) -> faiss.Kmeans:
    # Without limits of its own: the sample is chosen already.
    kmeans = faiss.Kmeans(
        points.shape[1],
        num_centres,
        niter=ROUNDS,
        seed=1,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    kmeans.train(np.ascontiguousarray(points))
    return kmeans


def _train_tables(tables: faiss.ProductQuantizer, points: np.ndarray) -> None:
    """K-means of every piece of the keys.

    Pieces are two to four numbers wide, for which FAISS's search takes twenty times as long as this product.
    """
    width = tables.dsub
    found = [
        _small_kmeans(np.ascontiguousarray(points[:, start : start + width]), tables.ksub)
        for start in range(0, tables.d, width)
    ]
    faiss.copy_array_to_vector(np.stack(found).astype(np.float32).ravel(), tables.centroids)


def _small_kmeans(points: np.ndarray, num_centres: int) -> np.ndarray:
    chosen = np.random.default_rng(0).choice(len(points), num_centres, replace=False)
    centres = points[np.sort(chosen)]
    for _ in range(ROUNDS):
        # Squared distances less the point's own square, which is the same for all centres.
        nearest = np.argmin((centres * centres).sum(axis=1) - 2 * points @ centres.T, axis=1)
        counts = np.bincount(nearest, minlength=num_centres)
        sums = [np.bincount(nearest, weights=column, minlength=num_centres) for column in points.T]
        means = np.stack(sums, axis=1) / np.maximum(counts, 1)[:, None]
        # A centre that has lost all its points stays where it was.
        centres = np.where(counts[:, None] > 0, means, centres).astype(np.float32)
    return centres


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
