"""The judged text of a web page is what a reader sees, in whatever container the page has it."""

from __future__ import annotations

import random

import pytest

from stream_dedup import Index
from stream_dedup.inputs.html import Extractor
from stream_dedup.inputs.html_child import WORDS_MIN, main_text, read_page

WORDS = [f"{a}{b}" for a in ("bridge", "ferry", "council") for b in "abcdefghijklmnop"]
MENU = "<nav><a href=/>Start</a> <a href=/news>News</a></nav>"
FOOTER = "<footer>Printed by the parish office and paid by its members.</footer>"
NOTICE = "<p>Lines are kept for a month.</p>"


def sentences(seed: object, count: int = 24) -> list[str]:
    """Return sentences of nine words."""
    chosen = random.Random(f"{seed}")
    return [" ".join(chosen.choices(WORDS, k=9)).capitalize() + "." for _ in range(count)]


def each(tag: str, lines: list[str], attributes: str = "") -> str:
    """Return each sentence in an element of its own."""
    return "".join(f"<{tag}{attributes}>{line}</{tag}>" for line in lines)


def paragraphs(lines: list[str]) -> str:
    return each("p", lines)


def labels(lines: list[str]) -> str:
    return each("div", [f"<label>{line}</label>" for line in lines])


CONTAINERS = {
    "list in body": lambda lines: f"<h1>Changes</h1><ul>{each('li', lines)}</ul>",
    "list in main": lambda lines: (
        f"{MENU}<main><h1>Changes</h1><ul>{each('li', lines)}</ul></main>{FOOTER}"
    ),
    "list, two levels down": lambda lines: (
        f"{MENU}<div><div><h1>Changes</h1><ul>{each('li', lines)}</ul></div></div>{FOOTER}"
    ),
    "class legal": lambda lines: f"<h1>Acts</h1><div class='act legal'>{paragraphs(lines)}</div>",
    "class featured": lambda lines: f"<h1>Acts</h1><div class=featured>{paragraphs(lines)}</div>",
    "class popup": lambda lines: f"<h1>News</h1><div class=popup>{paragraphs(lines)}</div>",
    "class newsletter": lambda lines: (
        f"<h1>Letter</h1><div><div><div class=newsletter>{paragraphs(lines)}</div></div></div>"
    ),
    "class email": lambda lines: (
        f"<h1>Archive</h1><div><div><div class=email>{paragraphs(lines)}</div></div></div>"
    ),
    "class of a language": lambda lines: (
        f"<h1>Songs</h1><div><div>{NOTICE}<div class=jp>{paragraphs(lines)}</div></div></div>"
    ),
    "class of print": lambda lines: (
        f"<h1>Order</h1><div class=print-area>{paragraphs(lines)}</div>"
    ),
    "shown on wide screens": lambda lines: (
        f"<h1>News</h1><div class='hidden md:block'>{paragraphs(lines)}</div>{FOOTER}"
    ),
    "right column": lambda lines: (
        f"<div id=left><a href=/>Home</a>{NOTICE}</div><div id=right>{paragraphs(lines)}</div>"
    ),
    "posts that are comments": lambda lines: (
        f"<h1>Forum</h1>{NOTICE}<div>{each('div', lines, ' class=comment')}</div>"
    ),
    "posts that are replies": lambda lines: (
        f"<h1>Forum</h1>{NOTICE}<div>{each('div', lines, ' class=reply')}</div>"
    ),
    "slides": lambda lines: f"<h1>Recipes</h1><div class=gallery>{each('div', lines)}</div>",
    "aside": lambda lines: f"<h1>Box</h1><aside>{paragraphs(lines)}</aside>",
    "textarea": lambda lines: f"<h1>Paste</h1>{NOTICE}<textarea>{' '.join(lines)}</textarea>",
    "labels": lambda lines: f"<h1>Quiz</h1>{labels(lines)}",
    "captions": lambda lines: (
        "<h1>Pictures</h1>"
        + "".join(f"<figure><img src=a alt=b><figcaption>{x}</figcaption></figure>" for x in lines)
    ),
    "behind an open dialog": lambda lines: (
        f"<div aria-hidden=true>{MENU}<main>{paragraphs(lines)}</main></div>"
        f"<div class=box><h2>Privacy</h2>{paragraphs(sentences('privacy', 4))}</div>"
    ),
    "behind a loading screen": lambda lines: (
        f"<div>Loading</div><div id=page style='display:none'>{paragraphs(lines)}</div>"
    ),
    "article": lambda lines: f"{MENU}<article>{paragraphs(lines)}</article>{FOOTER}",
}


def page(body: str) -> str:
    return f"<!doctype html><html><head><title>Site</title></head><body>{body}</body></html>"


@pytest.mark.parametrize("container", CONTAINERS)
def test_unlike_pages_of_one_template_are_no_copies(container: str) -> None:
    """Whatever the article's container, the article is judged, and not the heading above it."""
    index = Index()
    for seed in range(2):
        lines = sentences((container, seed))
        text = main_text(page(CONTAINERS[container](lines)))
        assert read_page(page(CONTAINERS[container](lines))).text == text

        assert [line for line in lines if line not in text] == []
        assert index.add(f"{seed}", text).reason == "new"


def test_menu_and_footer_are_no_part_of_an_article() -> None:
    """A copy under another site's frame has the same text."""
    article = f"<article>{paragraphs(sentences('copied'))}</article>"
    plain = main_text(page(article))

    assert main_text(page(MENU + article + FOOTER)) == plain
    assert main_text(page(MENU + article + 2000 * FOOTER)) == plain
    assert main_text(page(f"{MENU * 9}<main>{article}</main><aside>More</aside>")) == plain


def test_a_main_text_needs_a_tenth_of_what_is_visible() -> None:
    """A teaser above a hundred posts is not the page's text; one above nine is."""
    teaser = " ".join(sentences("teaser", 4))
    assert len(teaser.split()) > WORDS_MIN

    def text_with(posts: int) -> str:
        comments = each("div", sentences("posts", posts), " class=comment")
        return main_text(page(f"<article><p>{teaser}</p></article><div>{comments}</div>"))

    assert text_with(9) == teaser
    assert len(text_with(100).split()) == 104 * 9


def test_a_short_main_text_is_counted_in_the_words_of_its_script() -> None:
    """Chinese has no spaces: fifty characters are enough words."""
    text = "市议会星期二以多数票决定明年春天在河上修建一座新桥此前费用已经审查了两次渡船每刻钟开一班周末也开居民会收到信件"
    assert main_text(page(f"<article><p>{text}</p></article><footer>版权所有</footer>")) == text


def test_readings_of_ruby_are_no_words() -> None:
    """A text is the same with and without ruby readings, with `rb` or not, also of one
    character."""
    lines = sentences("ruby", 9)
    for word in ("漢", "漢字"):
        plain = page(f"<article>{paragraphs([*lines, f'この{word}は'])}</article>")
        for ruby in (
            f"<ruby>{word}<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>",
            f"<ruby><rb>{word}</rb><rt>かん</ruby>",
        ):
            assert main_text(plain.replace(word, ruby)) == main_text(plain)


def test_hidden_text_and_controls_are_not_visible() -> None:
    """What a reader does not see, or only presses, is no part of the visible text."""
    lines = sentences("shown", 5)
    hidden = [
        "<div hidden>not shown</div>",
        "<p style='color:red; display: none'>not shown</p>",
        "<dialog>not shown</dialog>",
        "<template>not shown</template>",
        "<noscript>not shown</noscript>",
        "<img alt='not shown'>",
        "<button>not shown</button>",
        "<input value='not shown'>",
        "<select><option>not shown</select>",
        "<svg><title>not shown</title></svg>",
    ]
    text = main_text(page(f"<h1>Quiz</h1>{labels(lines)}{''.join(hidden)}"))

    assert "not shown" not in text
    assert text.split() == ["Quiz", *" ".join(lines).split()]


FRAMES = {
    "elements": lambda body, links: (
        "<div class=cookie-banner><p>This page sets cookies, and asks for consent.</p></div>"
        f"<header><p>Our small parish</p></header><nav>{links}</nav><main>{body}</main>"
        f"<aside><h3>Latest</h3>{links}</aside>{FOOTER}"
    ),
    "classes": lambda body, links: (
        f"<div class=header><p>Our small parish</p></div><div class=menu>{links}</div>"
        f"<div id=content>{body}</div><div class='sidebar widget'>{links}</div>"
        f"<div class=footer><p>Printed by the parish office and paid by its members.</p></div>"
    ),
    "lists": lambda body, links: f"<ul>{links}</ul><div>{body}</div><ol>{links}</ol>",
}
SHORT_PAGES = {
    "caption": lambda line: f"<figure><img src=a><figcaption>{line}</figcaption></figure>",
    "caption in a gallery": lambda line: f"<div class=gallery><p>{line}</p></div>",
    "card": lambda line: f"<div class=card><h1>Lamp</h1><b>12.50</b><p>{line}</p></div>",
    "error": lambda line: f"<h1>Page not found</h1><p>{line}</p>",
    "news": lambda line: f"<article><h1>Notice</h1><p>{line}</p></article>",
}
SHORT_LINES = {
    "en": sentences("short pages", 6),
    "zh": [
        "渡船星期天停开",
        "桥上有两个孩子",
        "市场今天关门",
        "教堂的钟修好了",
        "河边种了树",
        "冬天没有船",
    ],
    "ru": [
        "Паром стоит до утра",
        "На мосту играют дети",
        "Рынок закрыт в среду",
        "Старый колокол снова цел",
        "Река замёрзла до весны",
        "Дождь идёт второй день",
    ],
}


def links_of(labels: list[str]) -> str:
    return each("li", [f"<a href=/{place}>{label}</a>" for place, label in enumerate(labels)])


@pytest.mark.parametrize("language", SHORT_LINES)
@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("kind", SHORT_PAGES)
def test_short_pages_in_one_frame_are_no_copies(kind: str, frame: str, language: str) -> None:
    """A menu of many links, a sidebar and a footer do not make captions copies of each other, and
    a changed menu does not hide a copy.
    """
    index = Index()
    for line in SHORT_LINES[language]:
        texts = [
            main_text(page(FRAMES[frame](SHORT_PAGES[kind](line), links_of(labels))))
            for labels in (WORDS[:40], [*WORDS[1:40], "new"])
        ]
        assert line in texts[0]
        assert texts[0] == texts[1]
        assert "consent" not in texts[0]
        assert index.add(line, texts[0], site="parish.example", title="Site").reason in {
            "new",
            "too-short",
        }


def test_a_short_article_is_judged_without_the_boxes_around_it() -> None:
    """If the main text contains the page's heading and most of the content, it is used."""
    article = f"<article><h1>Notice</h1>{paragraphs(sentences('box', 4))}</article>"
    box = f"<div class=popup>{NOTICE}</div>"

    assert main_text(page(MENU + box + article + FOOTER)) == main_text(page(article))
    assert NOTICE[3:-4] in main_text(page(MENU + box + article.replace("h1", "h2") + FOOTER))


@pytest.mark.parametrize(
    "wrapper",
    ["<main><h1>News of the week</h1>{}</main>", "<h1>News of the week</h1>{}", "{}"],
)
def test_lists_of_links_that_are_the_content_are_judged(wrapper: str) -> None:
    """Two pages of an archive have the same heading and differ only in their links."""
    first, second = (sentences(("archive", seed), 8) for seed in range(2))
    texts = [
        main_text(page(MENU + wrapper.format(f"<ul>{links_of(lines)}</ul>") + FOOTER))
        for lines in (first, second)
    ]
    assert [line for line in first if line not in texts[0]] == []
    assert [line for line in second if line not in texts[1]] == []


def test_names_below_the_heading_are_judged() -> None:
    """Short links are a menu, unless they follow the page's heading."""
    names = WORDS[:30]
    text = main_text(page(f"{MENU}<h1>Names in our small book</h1><ul>{links_of(names)}</ul>"))
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize(
    ("markup", "title"),
    [
        ("<title> Get-Item\n (Microsoft) </title><h1>Other</h1>", "Get-Item (Microsoft)"),
        ("<title>R&amp;D</title>", "R&D"),
        ("<title> </title><h1>The <em>first</em><br> one</h1><h1>Two</h1>", "The first one"),
        ("<svg><title>icon</title></svg><h1>Heading</h1>", "Heading"),
        ("<h1><ruby>東京<rt>とうきょう</rt></ruby>タワー</h1>", "東京タワー"),
        ("<h2>No title</h2>", ""),
        ("", ""),
    ],
)
def test_the_title_of_a_page_is_its_title_element_or_its_first_heading(
    markup: str, title: str
) -> None:
    body = f"<p>{WORDS[0]}</p>"
    assert read_page(markup + body).title == title
    extractor = Extractor()
    found = extractor.extract(markup + body)
    extractor.close()
    assert found == read_page(markup + body)
