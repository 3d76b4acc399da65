"""Rows of a data set as untidy as real ones: repeated ids, places, texts and questions, null and missing values."""

WORDS = "gout toe night crystals joint rest water acid red sore swells cold heat drug diet pain".split()


def sentence(number, length=9):
    """Example: 0 gives "Gout toe night crystals joint rest water acid red."."""
    return " ".join(WORDS[(number * 7 + place * (1 + number % 5)) % len(WORDS)] for place in range(length)) + "."


def odd_rows(count):
    return [odd_row(number) for number in range(count)]


def odd_row(number):
    row = {"id": f"q{number}", "question": f"What is {sentence(number, 3)[:-1]} {number % 40}?", "focus": "Gout"}
    row |= {
        "answer": f"{sentence(number)} {sentence(number + 1)} Case {number % 60}.",
        "url": None,
        "type": "treatment",
    }
    if number % 4 == 1:
        row["url"] = f"http://x.example/{number % 12}/index.html"
    if number % 5 == 0:
        row["id"] = f"repeated-{number % 3}"
    if number % 7 == 0:
        del row["id"]
    if number % 9 == 0:
        row["answer"] = [row["answer"], "Another."]
    if number % 11 == 0:
        row["answer"] = None
    if number % 13 == 0:
        row |= {"question": row["question"].upper(), "focus": f" {sentence(number, 2)} "}
    if number % 17 == 0:
        row["question"] = ""
    if number % 19 == 0:
        row["answer"] = f"{sentence(number)}\n\n\n{sentence(number, 400)}\n{sentence(3)}"
    return row
