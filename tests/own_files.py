"""Files of the four kinds that `data_prep.py --documents` reads, made by hand."""

import io
import textwrap
from zipfile import ZIP_DEFLATED, ZipFile

TOPICS = {
    "Care of bees": (
        "Winter feeding", "Keepers feed {n} litres of syrup to each hive before the frost begins in Ardenvale.",
    ),
    "Mending nets": (
        "Choosing twine", "Fishers of Porthmoor choose waxed twine of {n} strands because salt rots plain cotton.",
    ),
    "Baking rye": ("The sour starter", "A starter from Lindqvist's mill ferments for {n} hours beside the warm oven."),
    "Old clocks": (
        "Oiling the escapement", "Watchmakers put {n} drops of whale-free oil on the pallets of an escapement.",
    ),
    "Tiled stoves": (
        "Sweeping flues", "Sweeps in Brackenthal clean the flues {n} times every winter with a birch broom.",
    ),
}  # fmt: skip
MORE = (
    "Visitors from {place} wrote about it in their {adjective} diaries. The guild of {place} asks for {fee} shillings "
    "from each apprentice. Its {adjective} records burnt in {year}, and nobody has copied them since."
)
PLACES = "Quillmouth Stavering Tarnholt Ullswick Verrano Wexmere Xanthia Yarbeck Zellin Auburne Birkwell Calder Dunmore"
PLACES += " Eskdale Farrow Glenhythe Harwick Inverloch Jarrow Kestrel"
ADJECTIVES = (
    "leather-bound travelling cheerful crumbling illustrated anonymous wine-stained handsome secretive enormous"
)
ADJECTIVES += " minute scholarly rhyming gilded overdue borrowed unfinished coastal forbidden provincial"


def texts(number=20):
    """(title, heading, paragraph, second paragraph) of so many documents, each with words of its own."""
    for n, (place, adjective) in zip(range(number), zip(PLACES.split(), ADJECTIVES.split(), strict=True), strict=False):
        title, (heading, sentence) = list(TOPICS.items())[n % len(TOPICS)]
        more = MORE.format(place=place, adjective=adjective, fee=21 + n, year=1801 + n)
        yield f"{title} in {place}", heading, sentence.format(n=3 + n), more


def write_files(folder, number=20):
    """So many documents, in turn .txt, .md, .html and .pdf; the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for n, (title, heading, first, second) in enumerate(texts(number)):
        kind = ("txt", "md", "html", "pdf")[n % 4]
        names.append(f"{title.lower().replace(' ', '-')}.{kind}")
        path = folder / names[-1]
        if kind == "txt":
            path.write_text(f"{heading}\n\n{first}\n\n{second}\n")
        elif kind == "md":
            path.write_text(f"# {title}\n\n## {heading}\n\n{first}\n\n{second}\n")
        elif kind == "html":
            body = f"<h1>{title}</h1><h2>{heading}</h2><p>{first}</p><p>{second}</p>"
            path.write_text(f"<html><head><title>{title}</title></head><body>{body}</body></html>")
        else:
            path.write_bytes(pdf([f"{heading}", "", *wrapped(first), "", *wrapped(second)], title))
    return names


def wrapped(text, width=60):
    return textwrap.wrap(text, width)


def pdf(lines, title="", extra=b""):
    """A PDF of one page with these lines, with a right table of offsets; an empty line leaves a gap."""
    shown = [rb"BT /F1 12 Tf 14 TL 72 740 Td"]
    for line in lines:
        escaped = line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)").encode("latin-1")
        shown.append(b"(" + escaped + b") Tj T*" if line else b"T*")
    stream = b"\n".join([*shown, b"ET"]) if lines else b"q Q"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Title (%s) >>" % title.encode("latin-1"),
    ]
    body, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    trailer = b"trailer\n<< /Size 7 /Root 1 0 R /Info 6 0 R%s >>\n" % extra
    return body + b"xref\n0 7\n0000000000 65535 f \n" + table + trailer + b"startxref\n%d\n%%%%EOF\n" % len(body)


def docx(body, styles=""):
    """A Word document of these paragraphs and tables, with these styles."""
    names = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    more = "http://schemas.openxmlformats.org/markup-compatibility/2006"
    whole = f'<w:%s xmlns:w="{names}" xmlns:mc="{more}">%s</w:%s>'
    made = io.BytesIO()
    with ZipFile(made, "w", ZIP_DEFLATED) as parts:
        parts.writestr("word/document.xml", whole % ("document", f"<w:body>{body}</w:body>", "document"))
        parts.writestr("word/styles.xml", whole % ("styles", styles, "styles"))
    return made.getvalue()
