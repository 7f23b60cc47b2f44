"""The texts whose prints are frozen in `tests/golden/fingerprints.json`, and how that file came about.

`python -m tests.fingerprinting.golden` writes it, from the plain Python reference and not from the compiled path. It is
only to be run with a new `RULES_VERSION`: prints in a log written by an earlier version stay what they were.
"""

from __future__ import annotations

import json
from pathlib import Path

from stream_dedup.fingerprinting import PUBLIC_DEMO_KEY
from tests.fingerprinting import reference

FILE = Path(__file__).parent.parent / "golden" / "fingerprints.json"
KEYS = {"demo": PUBLIC_DEMO_KEY, "other": bytes(range(32))}

_ONE_SENTENCE = {  # Universal Declaration of Human Rights, article 1
    "english": "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood.",
    "french": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "german": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen "
    "begabt und sollen einander im Geist der Brüderlichkeit begegnen.",
    "spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros.",
    "turkish": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. İNSANLAR AKIL VE VİCDAN sahibidirler.",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền.",
    "polish": "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw.",
    "greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. ΟΔΥΣΣΕΥΣ",
    "russian": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью "
    "и должны поступать в отношении друг друга в духе братства.",
    "armenian": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "georgian": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით. ᲥᲐᲠᲗᲣᲚᲘ",
    "hebrew": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. שָׁלוֹם",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق، وقد وُهبوا عقلًا وضميرًا",
    "persian": "تمام افراد بشر آزاد به دنیا می\u200cآیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "bengali": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "tamil": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "telugu": "ప్రతిపత్తిస్వత్వముల విషయమున మానవులెల్లరును జన్మతః స్వతంత్రులును సమానులును నగుదురు.",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "lao": "ມະນຸດທຸກຄົນເກີດມາມີອິດສະຫຼະພາບແລະຄວາມສະເໝີພາບ",
    "khmer": "មនុស្សទាំងអស់ កើតមកមានសេរីភាព និងសមភាព",
    "burmese": "လူတိုင်းသည် တူညီလွတ်လပ်သော ဂုဏ်သိက္ခာဖြင့် မွေးဖွားလာသူများဖြစ်သည်။",
    "tibetan": "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌།",
    "amharic": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "korean": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "chinese simplified": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "chinese traditional": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。",
}

TEXTS = {
    **_ONE_SENTENCE,
    "everything at once": " ".join(_ONE_SENTENCE.values()),
    "every sentence thrice": " ".join(_ONE_SENTENCE.values()) * 3,
    "empty": "",
    "white space": " \t\r\n\u00a0\u2003\u3000\x1c",
    "invisible": "\ufeff\u200b\u2060\u00ad",
    "one letter": "a",
    "two words": "Hello, World!",
    "page not found": "404 Page not found",
    "punctuation": "?!... --- ***",
    "emoji": "\U0001f600\U0001f1e9\U0001f1ea\U0001f468\u200d\U0001f469\u200d\U0001f467\u2764\ufe0f",
    "control characters": "a\0b\x01c\x7fd",
    "lone surrogates": "a\ud800b \udfffc \udc00\ud800",
    "noncharacters": "a\ufffe\uffff\U0010ffffb",
    "private use": "a\ue000b \U000f0000",
    "unassigned": "a\u0378e\u0301\U000e0fff",
    "newer than the tables": "\U0001fae8 \U00011f02\U00011f03 \u1c89",
    "line ends": "one\r\ntwo\rthree\n\nfour\u2028five\x85six",
    "case": "STRASSE Straße ſtraße ΣΊΣΥΦΟΣ σίσυφος ǅ ŉ ŒUVRE İi Iı",
    "compatibility": "ﬁne ＡＢＣ １２３ ① Ⅷ ㍿ ㎏ x² ½ ™ … ﷺ",
    "decomposed": "Cafe\u0301 A\u030angstro\u0308m Vie\u0323\u0302t \u1112\u1161\u11ab\u1100\u1173\u11af",
    "marks out of order": "q\u0307\u0323 q\u0323\u0307 a\u0315\u0300\u05ae\u0062 \u0e01\u0e49\u0e38",
    "long run of marks": "Z" + "\u0301\u0323\u0334" * 40 + "algo",
    "iota subscript": "\u1fb3\u1fc3\u1ff3 \u037a\u0e4a \u1f80\u0323",
    "half-width kana": "ﾊﾟﾋﾟﾌﾟ ｶﾞｷﾞ ﾃｷｽﾄ",
    "digits of the world": "0123 ٠١٢٣ ०१२३ ๐๑๒๓ 〇一二三",
    "numbers": "3.14 1,000,000 2024-01-31 +49 (0)30 0xFF",
    "one word a thousand times": "spam " * 1000,
    "beyond the greatest count": "ham " * 1500 + "eggs " * 1024 + "toast",
    "a to z": " ".join(f"{first}{second}" for first in "abcdefghijklmnopqrstuvwxyz" for second in "aeiou"),
    "one long word": "x" * 5000,
    "han without end": "研究生命起源于" * 200,
    "han unknown to the dictionary": "龘靐齉爩麤龗灪吁龖厵爨滟 鑫森淼焱垚",
    "han beyond jieba": "\u3400\u3401\u9fd6\u9fff\U00020000\U0002a6d6 \uf900\ufa0e 々〇〡",
    "names": "他来到了网易杭研大厦，小明硕士毕业于中国科学院计算所，后在日本京都大学深造",
    "mixed scripts": "Python3编程入门（第2版）は面白いですね vs. Яндекс.Диск ฿500",
    "kanji and kana": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。",
    "markup left over": "<p>Price:&nbsp;$19.99</p> <a href='https://example.org/a?b=c&d=e#f'>more</a>",
    "code": "for (int i = 0; i < n; ++i) { sum += values[i]; }  // O(n)",
}


def freeze() -> str:
    """Return the text of the golden file."""
    rows = {}
    for name, text in TEXTS.items():
        rows[name] = {"text": text}
        for key_name, key in KEYS.items():
            made = reference.fingerprint(text, key)
            rows[name][key_name] = f"{made.print:032x} {made.features} {made.digest.hex()}"
    return json.dumps(rows, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(freeze(), "ascii")
