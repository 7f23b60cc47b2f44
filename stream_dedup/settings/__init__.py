"""What an operator says, and what follows from it.

settings     every setting: its name, default and description
units        values as people write them: times, sizes, names
properties   names in the environment, and the properties of Kafka's clients
layers       flag, environment, file and preset, one above the other
sentences    what is wrong with a setting
recipe       the settings as a recipe of fingerprints
page         the reference page, written from the settings
"""
