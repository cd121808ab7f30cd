"""Real PDF files, written by hand."""

from pathlib import Path

import pypdf
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject


def write_pdf(path: Path, pages: list[list[str]], title: str = "", password: str = "") -> Path:
    """A PDF whose pages hold these lines; a page without lines is as that of a scan."""
    writer = pypdf.PdfWriter()
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
        }
    )
    for lines in pages:
        page = writer.add_blank_page(612, 792)
        drawn = " T* ".join(f"({line}) Tj" for line in lines)
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 14 TL 72 700 Td {drawn} ET".encode() if lines else b"")
        page[NameObject("/Contents")] = writer._add_object(content)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path
