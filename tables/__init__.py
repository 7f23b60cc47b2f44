"""How the frozen tables of `stream_dedup/fingerprinting` are made: letters, their spellings, and
traditional Han.
"""
