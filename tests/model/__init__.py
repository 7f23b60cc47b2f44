"""The roles' own code under a seeded scheduler, on a Kafka in memory: `python -m tests.model
--schedules 10000`.

scheduler  processes that run one at a time, and stop at every call that leaves them
kafka      what a broker and its clients do, as far as exactly-once depends on it
world      the roles on that broker, and all that happens to them: a schedule, drawn from its seed
checker    what must hold when everything has come to rest
rules      each rule of the design, how it is switched off, and what the model then finds
"""
