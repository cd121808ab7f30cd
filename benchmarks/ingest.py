"""Ingesting JSONL to tokens against bare SentencePiece encoding of the same text with the same number of
threads.

    python benchmarks/ingest.py

The text is enwik8's articles. Ours reads and parses the file, hashes, splits, packs and unpacks the text
shards, encodes, drops duplicates, decontaminates and writes the token stores, with two processes; the
tokenizer is trained beforehand. The bare side is `SentencePieceProcessor.encode` over a list of the texts
in memory, with two threads.
"""

import json
import shutil
import tempfile
from pathlib import Path

import sentencepiece
from timing import interleaved_medians

from retro import catalogue
from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.corpus.readers import read
from retro.corpus.tokenizers.sentencepiece import MODEL_FILE
from retro.stages.executor import LocalExecutor

CONFIG = CorpusConfig(vocab_size=16_000)
THREADS = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalogue.fetch("enwik8")
        texts = [document.text for document in read("enwik8")]
        source = folder / "articles.jsonl"
        source.write_text(
            "".join(json.dumps({"id": str(number), "text": text}) + "\n" for number, text in enumerate(texts))
        )
        work = CorpusFolder(folder / "work")
        ingest(work, [str(source)], CONFIG, executor=LocalExecutor(THREADS))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(work.tokenizer_path / MODEL_FILE))

        def ours() -> None:
            for path in (work.text_path, work.encoded_path, work.tokens_path):
                shutil.rmtree(path)
            ingest(work, [str(source)], CONFIG, executor=LocalExecutor(THREADS))

        def bare() -> None:
            processor.encode(texts, num_threads=THREADS)

        seconds = interleaved_medians({"ours": ours, "bare": bare}, rounds=3, warmup=1)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    print(
        f"{megabytes:.1f} MB: ours {megabytes / seconds['ours']:.1f} MB/s, "
        f"bare SentencePiece {megabytes / seconds['bare']:.1f} MB/s"
    )
    print(
        f"ingesting JSONL to tokens reaches {seconds['bare'] / seconds['ours']:.2f} of bare encoding (aim "
        "≥ 0.8)"
    )


if __name__ == "__main__":
    main()
