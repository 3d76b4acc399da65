"""Text of pages: blocks in order, furniture out."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.data.scraping.page_text import Block, Page, decode_html, drop_boilerplate, read_page


def texts(html):
    return [block.text for block in read_page(html.encode(), "utf-8").blocks]


def test_a_whole_page_has_exactly_its_content():
    html = """<!DOCTYPE html><html><head><title>Asthma | Health Site</title><meta property="og:title" content="Shared">
    <style>p { color: red }</style><script>var text = "<p>no</p>";</script></head>
    <body class="has-cookie-banner"><a class="skip-link" href="#main">Skip to content</a>
    <header><h1>Health Site</h1><p>Tagline</p></header><nav><ul><li>Home</li><li>Topics</li></ul></nav>
    <div id="cookieConsent">We use cookies. <button>Accept</button></div>
    <main id="main"><div class="breadcrumbs">Home &gt; Lungs</div>
      <article><header><h1>Asthma&nbsp;in<br>children</h1></header>
      Loose text <b>in</b> the arti<i>cle</i>.
      <p>A <b>long</b>-term disease of the <a href="#">air&shy;ways</a> &amp; lungs:   H<sub>2</sub>O,\n
      5&nbsp;&micro;g.</p>
      <!-- a comment --><h2 id="social-anxiety">Signs</h2>
      <ul><li>Cough<ul><li>at night</li><li>in the cold</li></ul>and more</li><li><p>Wheeze</p></li></ul>
      <table><caption>Doses</caption><tr><th>Who</th><th>How much</th></tr>
        <tr><td>Adults</td><td><p>5 mg</p><p>twice</p></td></tr><tr><td>Children</td><td>2<br>mg</td></tr></table>
      <dl><dt>Trigger</dt><dd>What starts an attack.</dd></dl>
      <section id="informed-consent"><p>Ask your doctor.</p></section>
      <div class="share-buttons">Share this</div><div hidden>Hidden</div><span aria-hidden="true">*</span>
      <aside>Related pages</aside><form>Search <input value="x"></form></article></main>
    <div role="dialog">Subscribe now!</div><footer>Imprint</footer></body></html>"""
    page = read_page(html.encode(), None)
    assert page.title == "Asthma in children"
    assert page.blocks == (
        Block("Asthma in children", is_heading=True),
        Block("Loose text in the article."),
        Block("A long-term disease of the airways & lungs: H2O, 5 µg."),
        Block("Signs", is_heading=True),
        Block("Cough"),
        Block("at night"),
        Block("in the cold"),
        Block("and more"),
        Block("Wheeze"),
        Block("Doses"),
        Block("Who | How much"),
        Block("Adults | 5 mg twice"),
        Block("Children | 2 mg"),
        Block("Trigger"),
        Block("What starts an attack."),
        Block("Ask your doctor."),
    )


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<p>one<p>two", ["one", "two"]),
        ("<div>one<div>two</div>three</div>", ["one", "two", "three"]),
        ("<div>a<p></p>b</div>", ["a", "b"]),
        ("one<br>two<br/>three", ["one two three"]),
        ("<p>zero\u200bwidth</p><p>\u00a0 \u200b</p>", ["zerowidth"]),
        ("<pre>a\n  b</pre>", ["a b"]),
        ("<table><tr><td><h2>Lead</h2><p>para</p></td><td>side</td></tr></table>", ["Lead", "para", "side"]),
        ("<table><tr><td><table><tr><td>1</td><td>2</td></tr></table></td></tr></table>", ["1 | 2"]),
        ("<table><tr><td><ul><li>a</li><li>b</li></ul>c</td><td>d</td></tr></table>", ["a b c | d"]),
        ("no tags, 5 < 6\n\nnext\nline", ["no tags, 5 < 6", "next line"]),
        ("<p>before</p>\0<p>after</p>", ["before", "after"]),
        ('<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><p>x</p></html>', ["x"]),
        ("<script>x</script><!-- y -->", []),
    ],
)
def test_blocks(html, expected):
    assert texts(html) == expected


@pytest.mark.parametrize(
    "furniture",
    [
        "<nav>F</nav>",
        "<footer>F</footer>",
        "<header>F</header>",
        "<div role=navigation>F</div>",
        "<div role='search'>F</div>",
        "<div hidden>F</div>",
        "<div class='x Cookie_Notice'>F</div>",
        "<div id=onetrust-consent-sdk>F</div>",
        "<ol class='m-breadcrumb'>F</ol>",
        "<div class=socialLinks>F</div>",
        "<div class='newsletter-signup'>F</div>",
        "<a href='#c' class='skip-to-content'>F</a>",
        "<iframe>F</iframe>",
        "<template><p>F</p></template>",
        "<noscript><p>F</p></noscript>",
        "<svg><title>F</title><text>F</text></svg>",
    ],
)
def test_furniture_is_dropped(furniture):
    assert texts(f"{furniture}<p>What the page says.</p>{furniture}") == ["What the page says."]


@pytest.mark.parametrize(
    "content",
    [
        "<div class='social-anxiety'>Stays</div>",
        "<section id='sharing-needles'>Stays</section>",
        "<div class='informed-consent'>Stays</div>",
        "<h2 id='cookies-and-diet'>Stays</h2>",
        "<div hidden='until-found'>Stays</div>",
        "<div style='display:none'>Stays</div>",
        "<article><header>Stays</header></article>",
    ],
)
def test_content_that_looks_like_furniture_stays(content):
    assert texts(f"<p>What the page says.</p>{content}") == ["What the page says.", "Stays"]


def test_furniture_that_holds_the_page_stays():
    assert texts("<form id=aspnet><nav>Menu</nav><p>The whole page.</p></form>") == ["The whole page."]
    assert texts("<div class='cookies-ok'><main>M</main></div><p>Longer than the main part.</p>")[0] == "M"


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("<title>Gout | NHS</title>", "Gout"),
        ("<title>Type 1 - Diabetes - Mayo Clinic</title>", "Type 1 - Diabetes"),
        ("<title>Follow-up care</title>", "Follow-up care"),
        ("<title>Gout | NHS</title><meta property='og:title' content='Gout &amp; diet'>", "Gout & diet"),
        ("", ""),
    ],
)
def test_title_without_a_heading(head, title):
    assert read_page(f"<html><head>{head}</head><body><h1> </h1><p>x</p>".encode(), None).title == title


@given(st.binary(max_size=300), st.text(max_size=20) | st.sampled_from(["utf-16", "utf-7", "unicode_escape", "hz"]))
def test_no_bytes_and_no_charset_raise(body, charset):
    for page in (read_page(body, charset), read_page(b"<p>" + body + b"<table><tr><td>" + body, charset)):
        found = [page.title, *(block.text for block in page.blocks)]
        assert all(found[1:])  # no empty block
        assert found == [" ".join(text.split()) for text in found]
        assert "".join(found).encode().decode() == "".join(found)  # no half surrogate pairs
    assert decode_html(body, charset).encode().decode() == decode_html(body, charset)


# Charsets: declared, misdeclared, undeclared


SJOGREN = "Sjögren – café"


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (SJOGREN.encode(), None, SJOGREN),
        (SJOGREN.encode(), "iso-8859-1", SJOGREN),
        (SJOGREN.encode("cp1252"), "utf-8", SJOGREN),
        (SJOGREN.encode("cp1252"), "no-such-charset", SJOGREN),
        (b"\xef\xbb\xbf" + SJOGREN.encode(), "latin-1", SJOGREN),
        (b'<meta charset="koi8-r">' + "боль".encode("koi8-r"), None, '<meta charset="koi8-r">боль'),
        ("頭痛".encode("shift_jis"), '"Shift_JIS"', "頭痛"),
        (b"caf\xe9 \x81", None, "café \ufffd"),
    ],
)
def test_charsets(body, charset, text):
    assert decode_html(body, charset) == text


# Boilerplate of a host goes, what is only frequent stays


def test_drop_boilerplate():
    def page(*lines):
        return Page("T", (Block("See also", is_heading=True), *map(Block, lines)))

    own = {f"http://a.test/{n}": page(f"Page {n}") for n in range(5)}
    own |= {f"http://a.test/4?{how}": page("Page 4") for how in ("print", "mobile")}  # one page under three addresses
    own |= {f"http://b.test/{n}": page(f"Page {n}") for n in range(2)}
    pages = {url: page(each.blocks[1].text, "Call 911.") for url, each in own.items()}
    left, dropped = drop_boilerplate(pages, lambda url: urlsplit(url).netloc)
    assert dropped == {"Call 911.": 7}
    # Two pages prove nothing.
    assert left == {url: each if "a.test" in url else pages[url] for url, each in own.items()}
    assert list(left) == list(pages)
    assert drop_boilerplate(pages, site_of=lambda url: "one host")[0] == own
