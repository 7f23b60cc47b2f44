"""Settings of operators.

settings     every setting: its name, default and description
units        parsers of values: times, sizes, names
properties   names in the environment, and the properties of Kafka's clients
layers       flag, environment, file and preset, by precedence
sentences    messages about invalid settings
recipe       the recipe of fingerprints that the settings define
page         the reference page, generated from the settings
"""
