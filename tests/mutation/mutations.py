"""Lists small changes of a module, each of which a test should detect.

A change replaces one part of the source text and keeps all line numbers. Its id is a hash
of the module, the function, the operator and the two texts, and does not depend on line
numbers. Docstrings, annotations, error messages, `__repr__` and warnings are not changed.
"""

import ast
import hashlib
import re
from typing import NamedTuple

ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
COMPARISONS = {
    ast.Lt: ("<", ["<=", ">"]),
    ast.LtE: ("<=", ["<", ">="]),
    ast.Gt: (">", [">=", "<"]),
    ast.GtE: (">=", [">", "<="]),
    ast.Eq: ("==", ["!="]),
    ast.NotEq: ("!=", ["=="]),
    ast.In: ("in", ["not in"]),
    ast.NotIn: (r"not\s+in", ["in"]),
    ast.Is: ("is", ["is not"]),
    ast.IsNot: (r"is\s+not", ["is"]),
}
FUNCTION_PAIRS = (
    "reduce_sum reduce_mean",
    "reduce_min reduce_max",
    "reduce_any reduce_all",
    "minimum maximum",
    "zeros_like ones_like",
    "zeros ones",
    "argmin argmax",
    "any all",
    "min max",
    "floor ceil",
    "append extend",
    "divide_no_nan divide",
    "left_shift right_shift",
    "log log1p",
    "exp expm1",
    "mean sum",
)
REPLACEMENTS = {
    name: other
    for pair in map(str.split, FUNCTION_PAIRS)
    for name, other in (pair, pair[::-1])
}
# A call of one of these may be replaced by its first argument.
TRANSPARENT = set(
    [
        "stop_gradient",
        "sqrt",
        "square",
        "abs",
        "clip_by_value",
        "sorted",
        "reversed",
        "softplus",
        "softmax",
        "exp",
        "log",
        "round",
        "floor",
        "sign",
        "reverse",
        "cumsum",
        "nan_to_num",
        "logical_not",
        "tanh",
        "sigmoid",
    ]
)
CHOICES = {"where", "cond"}  # their second and third argument are alternatives
SYMMETRIC = set(
    [
        "maximum",
        "minimum",
        "max",
        "min",
        "equal",
        "array_equal",
        "assert_equal",
        "logical_and",
        "logical_or",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_and",
    ]
)
# Calls that only print a message.
MESSAGE_CALLS = {"warn", "print", "info", "warning", "debug", "error"}
KEYWORDS = {"name", "message", "strict", "stacklevel", "summarize"}
SKIPPED_FUNCTIONS = {"__repr__", "__str__"}


class Mutant(NamedTuple):
    """One change; `start` and `end` are byte offsets in the module's text."""

    id: str
    module: str  # path inside the package
    function: str  # qualified name; "" outside of functions and classes
    operator: str
    before: str
    after: str
    fingerprint: str  # of the outermost function, or of the statement outside of one
    place: str  # "body", "default" or "module"
    unit: int  # first line of the outermost function, decorators included
    lines: tuple  # first and last line of the change
    header: tuple  # first and last line of its statement
    start: int
    end: int
    text: str


def apply(mutant, source):
    """Returns the module's text with the change."""
    data = source.encode()
    return (data[: mutant.start] + mutant.text.encode() + data[mutant.end :]).decode()


def mutants(module, source):
    """Returns all changes of one module, each with a unique id."""
    result, counts = [], {}
    for change in _ChangeCollector(module, source).changes:
        key = (module, *change[:4])
        counts[key] = counts.get(key, 0) + 1
        text = "\0".join([*key, str(counts[key])])
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        result.append(Mutant(digest, module, *change))
    return result


def sample(candidates, share, fingerprints=None):
    """Returns a reproducible sample of the changes, at least one for each function.

    If the fingerprint of a function is that of the table, its sample is that of the table
    too. In a new or edited function, the changes are selected by their ids.

    Args:
        candidates: List of `Mutant`.
        share: Float, approximately the fraction that is selected; 1 selects all.
        fingerprints: Dict from the ids in the table to the fingerprints of their
            functions.
    """
    limit = f"{int(share * 16**10):010x}" if share < 1 else "g"
    fingerprints = fingerprints or {}
    unchanged = [m for m in candidates if fingerprints.get(m.id) == m.fingerprint]
    unchanged_functions = {(m.module, m.function) for m in unchanged}
    least = {}
    for mutant in candidates:
        key = (mutant.module, mutant.function)
        least[key] = min(least.get(key, mutant.id), mutant.id)

    def is_sampled(mutant):
        key = (mutant.module, mutant.function)
        if share < 1 and key in unchanged_functions:
            return mutant.id in fingerprints
        return mutant.id < limit or mutant.id == least[key]

    return [m for m in candidates if is_sampled(m)]


def compiles(mutant, source):
    """Returns whether the changed text compiles."""
    try:
        compile(apply(mutant, source), "<mutant>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _fingerprint(node):
    """Returns a hash of a function without its docstrings and comments."""
    text = ast.dump(node)
    for inner in ast.walk(node):
        docstring = _docstring(inner)
        if docstring is not None:
            text = text.replace(ast.dump(docstring), "", 1)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _docstring(node):
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
        return node.body[0]
    return None


def _name(function):
    """Returns the last name of a called function: `reduce_sum` of `tf.reduce_sum`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_string(node):
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_minus_one(node):
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and node.operand.value == 1
        and isinstance(node.operand.value, int)
    )


def _number(node):
    return node.value if isinstance(node, ast.Constant) else None


class _ChangeCollector(ast.NodeVisitor):
    """Visits a module and collects `changes`, tuples of the fields of `Mutant`."""

    def __init__(self, module, source):
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.changes = []
        self.names = []
        self.outer_functions = []  # the outermost function around a node
        self.statement = None
        self.fingerprints = {}
        self.place = "module"
        tree = ast.parse(source)
        self.docstrings = {
            id(docstring)
            for node in ast.walk(tree)
            if (docstring := _docstring(node)) is not None
        }
        self._statements(tree.body)

    # Positions of a node in the text.

    def start_of(self, node):
        return self.starts[node.lineno - 1] + node.col_offset

    def end_of(self, node):
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def segment(self, node):
        return self.data[self.start_of(node) : self.end_of(node)].decode()

    def add(self, operator, node, text, start=None, end=None):
        """Adds a change of a node: `text` replaces the bytes from `start` to `end`."""
        start = self.start_of(node) if start is None else start
        end = self.end_of(node) if end is None else end
        old = self.data[start:end].decode()
        text += "\n" * (old.count("\n") - text.count("\n")) if "\n" in old else ""
        before = self.segment(node)
        offset = len(self.data[self.start_of(node) : start].decode())
        after = before[:offset] + text.rstrip("\n") + before[offset + len(old) :]
        before, after = (" ".join(x.split()) for x in (before, after))
        if before == after:
            return
        unit = self.outer_functions[-1] if self.outer_functions else self.statement
        if unit not in self.fingerprints:
            self.fingerprints[unit] = _fingerprint(unit)
        first = min(
            [unit.lineno, *(d.lineno for d in getattr(unit, "decorator_list", []))]
        )
        header = self._header(self.statement)
        self.changes.append(
            (
                ".".join(self.names),
                operator,
                before,
                after,
                self.fingerprints[unit],
                self.place,
                first,
                (node.lineno, node.end_lineno),
                header,
                start,
                end,
                text,
            )
        )

    def _header(self, statement):
        body = getattr(statement, "body", None)
        if isinstance(body, list) and body:
            return statement.lineno, max(statement.lineno, body[0].lineno - 1)
        return statement.lineno, statement.end_lineno

    def between(self, left, right, symbol):
        """Returns start and end of the operator between two operands."""
        start, end = self.end_of(left), self.start_of(right)
        text = self.data[start:end]
        text = re.sub(rb"#[^\n]*", lambda m: b" " * len(m.group()), text)
        match = re.search(symbol.encode(), text)
        return start + match.start(), start + match.end()

    # Statements.

    def _statements(self, body):
        for statement in body:
            if id(statement) in self.docstrings:
                continue
            outer, self.statement = self.statement, statement
            self.visit(statement)
            self.statement = outer

    def visit_ClassDef(self, node):
        self.names.append(node.name)
        outer, self.place = self.place, self.place if self.outer_functions else "module"
        self._statements(node.body)
        self.place = outer
        self.names.pop()

    def visit_FunctionDef(self, node):
        if node.name in SKIPPED_FUNCTIONS:
            return
        self.names.append(node.name)
        outermost = not self.outer_functions
        if outermost:
            self.outer_functions.append(node)
        outer = self.place
        self.place = "default" if outermost else outer
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        self.place = "body"
        self._statements(node.body)
        self.place = outer
        if outermost:
            self.outer_functions.pop()
        self.names.pop()

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            if _name(node.value.func) in MESSAGE_CALLS:
                return
            self.add("remove statement", node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node):
        names = {
            target.id
            for top in node.targets
            for target in ast.walk(top)
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        }
        used = {x.id for x in ast.walk(node.value) if isinstance(x, ast.Name)}
        if names & used and self.outer_functions:
            self.add("remove statement", node, "pass")
        for target in node.targets:
            self.visit(target)
        self.visit(node.value)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node):
        self.add("remove statement", node, "pass")
        old, new = ARITHMETIC.get(type(node.op), (None, None))
        if old is not None:
            place = self.between(node.target, node.value, re.escape(old) + "=")
            self.add("assignment", node, "=", *place)
            self.add("arithmetic", node, new + "=", *place)
        self.visit(node.value)

    def visit_Raise(self, node):
        self.add("remove statement", node, "pass")

    def visit_Assert(self, node):
        self.add("remove statement", node, "pass")

    def visit_Delete(self, node):
        self.add("remove statement", node, "pass")

    def visit_Continue(self, node):
        self.add("loop", node, "break")

    def visit_Break(self, node):
        self.add("loop", node, "continue")

    def visit_Return(self, node):
        value = node.value
        if value is None:
            return
        self.visit(value)

    def visit_If(self, node):
        self._condition(node.test)
        self._statements(node.body)
        self._statements(node.orelse)

    def visit_While(self, node):
        self.visit(node.test)
        self._statements(node.body)

    def visit_For(self, node):
        self.visit(node.iter)
        self._statements(node.body)
        self._statements(node.orelse)

    def visit_With(self, node):
        for item in node.items:
            self.visit(item.context_expr)
        self._statements(node.body)

    def visit_Try(self, node):
        self._statements(node.body)
        for handler in node.handlers:
            self._statements(handler.body)
        self._statements(node.orelse)
        self._statements(node.finalbody)

    # Expressions.

    def _condition(self, test):
        self.add("condition", test, "True")
        self.add("condition", test, "False")
        self.visit(test)

    def visit_IfExp(self, node):
        self._condition(node.test)
        self.visit(node.body)
        self.visit(node.orelse)

    def visit_comprehension(self, node):
        self.visit(node.iter)
        for test in node.ifs:
            self.add("condition", test, "True")
            self.visit(test)

    def visit_JoinedStr(self, node):
        """Skips formatted strings, which are often messages."""

    def visit_BinOp(self, node):
        if _is_string(node.left) or _is_string(node.right):
            return
        old, new = ARITHMETIC.get(type(node.op), (None, None))
        if old is not None:
            place = self.between(node.left, node.right, re.escape(old))
            self.add("arithmetic", node, new, *place)
        self.visit(node.left)
        self.visit(node.right)

    def visit_UnaryOp(self, node):
        if _is_minus_one(node):
            self.add("constant", node, "0")
            self.add("constant", node, "-2")
            return
        if not isinstance(node.op, ast.UAdd):
            self.add("negation", node, self.segment(node.operand))
        self.visit(node.operand)

    def visit_BoolOp(self, node):
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:]):
            place = self.between(left, right, rf"\b{old}\b")
            self.add("boolean", node, new, *place)
        for value in node.values:
            self.visit(value)

    def visit_Compare(self, node):
        operands = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, operands, operands[1:]):
            symbol, others = COMPARISONS[type(operator)]
            place = self.between(left, right, symbol)
            for other in others:
                self.add("comparison", node, other, *place)
        for operand in operands:
            if isinstance(operand, ast.Constant) and isinstance(operand.value, str):
                self.add("constant", operand, repr(operand.value + "!"))
            self.visit(operand)

    def visit_Constant(self, node):
        value = node.value
        if isinstance(value, bool):
            self.add("constant", node, str(not value))
        elif isinstance(value, int):
            self.add("constant", node, str(0 if value == 1 else value + 1))
        elif isinstance(value, float):
            self.add("constant", node, repr(2 * value if value else 1.0))

    def visit_Subscript(self, node):
        self.visit(node.value)
        index = node.slice
        if _number(index) == 0 and not isinstance(_number(index), bool):
            self.add("slice", index, "-1")
        elif _is_minus_one(index):
            self.add("slice", index, "0")
        else:
            self.visit(index)

    def visit_Slice(self, node):
        lower, upper, step = node.lower, node.upper, node.step
        if step is not None and _is_minus_one(step) and not (lower or upper):
            self.add("slice", node, ":")
        elif step is None and lower is not None and upper is None:
            text = ":-1" if _number(lower) == 1 else ":" + self.segment(lower)
            self.add("slice", node, text)
        elif step is None and upper is not None and lower is None:
            text = "1:" if _is_minus_one(upper) else self.segment(upper) + ":"
            self.add("slice", node, text)
        for part in (lower, upper, step):
            if part is not None and not _is_minus_one(part):
                self.visit(part)

    def visit_Call(self, node):
        name = _name(node.func)
        if name in MESSAGE_CALLS:
            return
        if name in REPLACEMENTS:
            end = self.end_of(node.func)
            self.add("function", node, REPLACEMENTS[name], end - len(name.encode()), end)
        plain = [a for a in node.args if not isinstance(a, ast.Starred)]
        if name in TRANSPARENT and plain:
            self.add("function", node, self.segment(plain[0]))
        self._swap_neighbours(node, node.args, name)
        values = [k.value for k in node.keywords if k.arg and k.arg not in KEYWORDS]
        for left, right in zip(values, values[1:]):
            kinds = {type(left), type(right)}
            if len(kinds) == 1 and kinds <= {ast.Name, ast.Attribute, ast.Call}:
                self._swap_pair(node, left, right)
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in KEYWORDS:
                self.visit(keyword.value)

    def _swap_neighbours(self, node, arguments, name):
        """Swaps adjacent positional arguments of a call."""
        if name in SYMMETRIC:
            return
        first = 1 if name in CHOICES and len(arguments) == 3 else 0
        pairs = zip(arguments[first:], arguments[first + 1 :])
        for left, right in list(pairs)[:2]:
            has_string = any(map(_is_string, (left, right)))
            has_star = any(isinstance(x, ast.Starred) for x in (left, right))
            if not has_string and not has_star and name not in ("isinstance", "getattr"):
                self._swap_pair(node, left, right)

    def _swap_pair(self, node, left, right):
        start, end = self.start_of(left), self.end_of(right)
        middle = self.data[self.end_of(left) : self.start_of(right)].decode()
        text = self.segment(right) + middle + self.segment(left)
        self.add("arguments", node, text, start, end)
