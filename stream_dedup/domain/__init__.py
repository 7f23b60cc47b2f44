"""The nouns that every room uses: documents, errors, topics, plans. It imports nothing of the other
rooms.
"""
