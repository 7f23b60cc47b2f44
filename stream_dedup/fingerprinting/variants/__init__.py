"""Code that only some recipes and some texts need.

keywords   keywords of a text, as jieba finds them
vectors    vectors to bits
segmenter  words by ICU, where a script has no spaces
han        traditional Han folded to simplified
"""
