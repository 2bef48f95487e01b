"""Statements of what each trust model protects. The console and the command line show them with a new dataset."""

STATEMENTS = {
    "local": "each device perturbs its own record. The service never receives true values.",
    "shuffled": (
        "each device perturbs its record and seals it for the service. A shuffler, which another organisation runs, "
        "releases the reports of a round together, without senders. If the shuffler and the operator do not work "
        "together, and the declared share of the reports is honest, the operator learns at most (ε, δ). Otherwise the "
        "local ε is the protection."
    ),
    "central": (
        "you upload records, and the service stores them. Jobs receive only query answers with noise. The operator of "
        "the service can read the records."
    ),
}
