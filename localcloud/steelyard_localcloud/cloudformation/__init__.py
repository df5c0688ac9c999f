"""CloudFormation handlers, one module for each kind of resource, and their registration with ministack.

Each module gives ``Handler`` objects; ``register`` enters them into ministack's tables.
"""
