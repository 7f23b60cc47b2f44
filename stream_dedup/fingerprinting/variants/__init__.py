"""Code that only some recipes and some texts need.

keywords   keywords of a text, as jieba finds them
vectors    vectors to bits
han        traditional Han folded to simplified
"""
