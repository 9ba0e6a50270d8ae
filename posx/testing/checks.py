"""The checks of one encoding: what it is as a value, and what its hooks do, against what it claims.

A check takes a Subject, returns its measured figure as a text, and raises Failed or Inapplicable.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from posx.encodings.base import Dims, Encoding
from posx.testing import measures
from posx.testing.subject import FAR, NEAR, PAST, TOKENS, Failed, Inapplicable, Subject, difference, finite, require
from posx.testing.textbook import HOOKS, Bound


def is_a_value(s: Subject) -> str:
  """Equality, hash, repr and replace are those of a frozen dataclass; it can be a static argument of jit."""
  made, copy = s.encoding, dataclasses.replace(s.encoding)
  require(made == copy and hash(made) == hash(copy) and repr(made) == repr(copy), f"a copy of {made} is not equal to it")
  require(f"{type(made).__name__}(" in repr(made), f"its repr must name its class, got {made!r}")
  traces = []
  run = jax.jit(lambda e: traces.append(e) or jnp.zeros(()), static_argnums=0)
  run(made)
  run(copy)
  require(len(traces) == 1, "an equal encoding is traced again")
  try:
    made.anything = 1  # type: ignore[attr-defined]
  except dataclasses.FrozenInstanceError:
    return repr(made)
  raise Failed("it can be changed; make it a frozen dataclass")


def parameters(s: Subject) -> str:
  """float32, finite, the same for the same key; those `by_head` lead with the head axis."""
  for path, x in jax.tree_util.tree_leaves_with_path(s.start):
    require(x.dtype == jnp.float32 and finite(x), f"{jax.tree_util.keystr(path)} must be finite and float32, got {x.dtype}")
  again = s.encoding.init(jax.random.key(0), s.dims)
  require(jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), s.start, again)), "init with the same key gives other numbers")
  mine, _ = s.encoding.heads(Bound(s.encoding, s.dims, s.start).p())
  wrong = [x.shape for x in jax.tree.leaves(mine) if not x.shape or x.shape[0] != s.dims.num_heads]
  require(not wrong, f"what is by_head must lead with {s.dims.num_heads} heads, got {wrong}")
  return f"{measures.parameters(s)} in one layer of {s.dims.num_heads} heads of {s.dims.head_dim}, {s.dims.model_dim} wide"


def constants(s: Subject) -> str:
  """Made on the host, as float32 or int32."""
  leaves = jax.tree.leaves(s.encoding.constants(s.dims, s.dims.train_length))
  for x in leaves:
    require(isinstance(x, np.ndarray | np.generic), f"constants are NumPy arrays, got {type(x).__name__}")
    require(x.dtype in (np.float32, np.int32), f"constants are float32 or int32, got {x.dtype}")
  return f"{len(leaves)} arrays, {sum(x.nbytes for x in leaves)} bytes"


def shapes(s: Subject) -> str:
  """Queries, keys and input keep their dtype, scores and biases are float32; shapes fit."""
  h, c, d = s.dims.num_heads, s.dims.head_dim, s.dims.model_dim
  made = s.run()
  for name, shape, dtype in (
    ("input", (TOKENS, d), s.dtype),
    ("scores", (h, TOKENS, TOKENS), "float32"),
    ("output", (h, TOKENS, c), "float32"),
  ):
    found = made[name]
    require(found.shape == shape and found.dtype == dtype, f"{name} must be {dtype} {shape}, got {found.dtype} {found.shape}")
  q, k = made["queries"], made["keys"]
  require(q.dtype == k.dtype == s.dtype, f"queries and keys must stay {s.dtype}, got {q.dtype} and {k.dtype}")
  require(q.shape == k.shape and q.shape[:2] == (h, TOKENS) and q.shape[2] >= c, f"queries {q.shape} and keys {k.shape} do not fit")
  if s.encoding.uses("bias"):
    head = Bound(s.encoding, s.dims, s.params).head(0)
    for distance in (jnp.arange(-2, 4).reshape(2, 3), jnp.int32(5)):
      bias = s.encoding.bias(head, distance)
      require(bias.shape == distance.shape and bias.dtype == jnp.float32, f"bias of {distance.shape} is {bias.dtype} {bias.shape}")
  return f"{s.dtype}; {q.shape[2]} channels meet in the product"


def finite_far_out(s: Subject) -> str:
  """Finite at position 131,071 with finite gradients, or a refusal that names a cure."""
  length = int(FAR[-1]) + 1
  refusal = s.refusal(length)
  if refusal:
    return _refuses(s, refusal)
  last = np.arange(length - TOKENS, length)
  made = s.run(last, FAR, length=length)
  wrong = [name for name in ("input", "queries", "keys", "output") if not finite(made[name])]
  seen = np.asarray(made["scores"])[:, last[:, None] >= FAR[None, :]]
  require(not wrong and finite(seen), f"not finite at position {FAR[-1]}: {', '.join(wrong) or 'scores'}")
  # As they are written, gradients are asked for near the origin only: the formulas are the same.
  slopes = s.run(last, FAR, which="slope", length=length) if s.jit else ()
  for path, g in jax.tree_util.tree_leaves_with_path(slopes):
    require(finite(g), f"the gradient at position {FAR[-1]} is not finite: {jax.tree_util.keystr(path)}")
  return f"largest score {np.abs(seen).max():.4g}"


def _refuses(s: Subject, refusal: str) -> str:
  from posx import extensions

  cures = [name for name in extensions.CATALOGUE if f"'{name}'" in refusal]
  require(cures or s.encoding.max_context is not None, f"the refusal names no extension that cures it: {refusal}")
  try:
    Subject.run(dataclasses.replace(s, jit=False), FAR)
  except ValueError:
    return f"refuses beyond {measures.longest(s)}: {', '.join(cures) or 'fed at most so many'}"
  raise Failed(f"`check` refuses {FAR[-1] + 1} positions, but the hooks serve them silently")


def gradients(s: Subject) -> str:
  """Gradients are finite and reach every parameter."""
  smallest = np.inf
  for path, g in jax.tree_util.tree_leaves_with_path(s.run(which="slope")):
    require(finite(g), f"the gradient is not finite: {jax.tree_util.keystr(path)}")
  for path, g in jax.tree_util.tree_leaves_with_path(s.run(which="slope")[0]):
    size = difference(g, 0 * g)
    smallest = min(smallest, size)
    require(size > 1e-5, f"no gradient reaches the parameter {jax.tree_util.keystr(path)}")
  return f"smallest of a parameter {smallest:.2g}" if np.isfinite(smallest) else "nothing is learned"


def compiled_equals_plain(s: Subject) -> str:
  """Under jit, with the encoding's program and its constants as arguments, the hooks give what they give as written."""
  plain, fast = (dataclasses.replace(s, jit=jit).run() for jit in (False, True))
  # bfloat16 has 8 bits; compilers keep more between operations.
  allowed = 2e-5 if s.dtype == "float32" else 0.05
  scale = 1 + float(np.abs(np.asarray(plain["scores"])[PAST]).max())
  error = max(difference(plain["scores"], fast["scores"], PAST) / scale, difference(plain["input"], fast["input"]))
  require(error < allowed, f"compiled and plain differ by {error:.2g}, allowed {allowed}")
  return f"{error:.1e}"


def causality(s: Subject) -> str:
  """What follows a query changes nothing about it."""
  tokens, other, cut = s.tokens(), s.tokens(seed=1), 5
  mixed = {n: jnp.concatenate([tokens[n][..., :cut, :], other[n][..., cut:, :]], axis=-2) for n in tokens}
  before, after = s.run(tokens=tokens), s.run(tokens=mixed)
  error = difference(before["output"], after["output"], np.s_[:, :cut])
  require(error < 1e-6, f"a later token changes earlier outputs by {error:.2g}")
  require(difference(before["output"], after["output"]) > 1e-3, "a token does not change its own output")
  return f"{error:.1e}"


def shift_invariance(s: Subject) -> str:
  """Claim `relative`: scores depend on positions through i - j alone."""
  error = measures.shift_error(s)
  require((error < 2e-5) == s.encoding.relative, f"relative={s.encoding.relative}, but a common shift changes scores by {error:.2g}")
  return f"{error:.1e}{'' if s.encoding.relative else ', not claimed'}"


def norms(s: Subject) -> str:
  """Claim `norm_preserving`: queries and keys keep their norms."""
  error = measures.norm_error(s)
  claim = s.encoding.norm_preserving
  if not claim and measures.longest(s) <= s.dims.train_length:
    raise Inapplicable("serves trained positions only, where an extension has nothing to change")
  require((error < 1e-5) == claim, f"norm_preserving={claim}, but the norms of queries and keys change by {error:.2g}")
  return f"{error:.1e}{'' if claim else ', not claimed'}"


def linear_shift(s: Subject) -> str:
  """Claim `linear_shift`: what is added to the input at p + k is a fixed linear map of what is added at p."""
  claim = s.encoding.linear_shift
  if "on_input" not in s.hooks:
    require(not claim, "linear_shift is a claim about the input, which this encoding leaves alone")
    raise Inapplicable("adds nothing to the input")
  dims = dataclasses.replace(s.dims, train_length=1024)
  error = measures.linear_shift_error(s.encoding, Bound(s.encoding, dims))
  require((error < 1e-4) == claim, f"linear_shift={claim}, but the best linear map misses by {error:.2g}")
  return f"{error:.1e}{'' if claim else ', not claimed'}"


def blocks(s: Subject) -> str:
  """Claim `elementwise`: hook(tile) == hook(row)[tile], whatever stands around the tile."""
  tokens, other, rows, columns = s.tokens(), s.tokens(seed=1), np.arange(4, 8), np.arange(1, 4)
  at = np.concatenate([NEAR[:4] + 1, NEAR[4:]]), NEAR + 2 * (np.arange(TOKENS) > 3)
  q = tokens["q"].at[:, :4].set(other["q"][:, :4])
  k = other["k"].at[:, columns].set(tokens["k"][:, columns])
  whole = s.run(tokens=tokens, seen=True)["scores"]
  inside = s.run(at[0], at[1], tokens={**tokens, "q": q, "k": k}, seen=True)["scores"]
  error = difference(whole, inside, np.s_[:, rows[:, None], columns])
  claim = s.encoding.elementwise
  require((error < 2e-5) == claim, f"elementwise={claim}, but what stands around a tile changes it by {error:.2g}")
  return f"{error:.1e}{'' if claim else ', not claimed'}"


def content_free(s: Subject) -> str:
  """Claim `content_free`: what is added to the scores does not know queries and keys."""
  if s.encoding.form == "none":
    scores = jnp.zeros((TOKENS, TOKENS))
    q, k, at = s.tokens()["q"][0], s.tokens()["k"][0], jnp.asarray(NEAR)
    handed = s.encoding.on_scores(Bound(s.encoding, s.dims, s.params).head(0), scores, q, k, at, at)
    require(handed is scores, "an encoding without a score hook must hand the scores back as they are")
    return "no score hook"
  added = []
  for seed in (0, 1):
    made = s.run(tokens=s.tokens(seed))
    product = np.einsum("htc,huc->htu", np.asarray(made["queries"], np.float64), np.asarray(made["keys"], np.float64))
    added.append(np.asarray(made["scores"]) - product * s.dims.head_dim**-0.5)
  error = difference(added[0], added[1], PAST)
  claim = s.encoding.content_free
  require((error < 1e-5) == claim, f"content_free={claim}, but other queries and keys change what is added by {error:.2g}")
  return f"{error:.1e}{'' if claim else ', not claimed'}"


def separable(s: Subject) -> str:
  """`separable` gives channels whose products are what is added to the scores, up to a number of the row."""
  if not s.encoding.uses("separable"):
    raise Inapplicable("gives no channels")
  made = {name: np.asarray(x, np.float64) for name, x in s.run().items()}
  product = np.einsum("htc,huc->htu", made["queries"], made["keys"]) * s.dims.head_dim**-0.5
  over = np.where(NEAR[:, None] >= NEAR[None, :], made["separable"] - (made["scores"] - product), np.nan)
  error = float((np.nanmax(over, -1) - np.nanmin(over, -1)).max()) / (1 + float(np.abs(made["separable"][PAST]).max()))
  require(error < 1e-5, f"its channels miss what the score hook adds by {error:.2g} within a row; override `separable` with the hook")
  return f"{error:.1e}"


def knows_order(s: Subject) -> str:
  """Without an encoding and a mask, attention takes 'dog bites man' for the set of its words; with the encoding it does not."""
  nothing = Subject(Encoding(), s.dtype, True, s.dims)
  blind = max(measures.order_difference(nothing, order) for order in measures.ORDERS.values())
  found = max(measures.order_difference(s, order) for order in measures.ORDERS.values())
  require(blind < 1e-5, f"attention without positions and mask tells orders apart by {blind:.2g}")
  require((found > 1e-4) == bool(s.hooks), f"orders differ by {found:.2g} with the hooks {', '.join(s.hooks) or 'of nothing'}")
  return f"{found:.2g} with, {blind:.0e} without"


def short_long_short(s: Subject) -> str:
  """I5: the same tokens after a longer context are bit for bit what they were."""
  lengths = (TOKENS, s.dims.train_length, TOKENS) if s.refusal(4096) else (TOKENS, 4096, TOKENS)
  runs = [s.run(np.arange(n - TOKENS, n), length=n) for n in lengths]
  same = all(np.array_equal(np.asarray(runs[0][n]), np.asarray(runs[2][n])) for n in runs[0])
  require(same, f"{TOKENS} tokens, then {lengths[1]}, then {TOKENS}: the first and the third differ")
  return f"{TOKENS}, {lengths[1]}, {TOKENS} tokens"


def parts(s: Subject) -> str:
  """`split` parts the input from the layers, `program` has the same form and is its own program."""
  first, rest = s.encoding.split()
  require(not rest.uses("on_input"), "the part of the layers acts on the input")
  both = tuple(hook for hook in HOOKS if first.uses(hook) or rest.uses(hook))
  require(both == s.hooks, f"its parts act on {both}, it acts on {s.hooks}")
  program = s.encoding.program()
  require(
    program.form == s.encoding.form and program.program() == program, f"the program {program} is of another form, or has another program"
  )
  return f"form '{s.encoding.form}', hooks: {', '.join(s.hooks) or 'none'}"


def lengths_served(s: Subject) -> str:
  """`check` refuses every length above the longest it serves."""
  found = measures.longest(s)
  require(found >= s.dims.train_length, f"trained on {s.dims.train_length} tokens, it serves {found}")
  return f"{found}{'' if found < measures.FURTHEST else ' or more'}"


def other_sizes(s: Subject) -> str:
  """Heads that are no power of two, one head, wide heads: parameters and constants have the sizes that they are asked for."""
  for dims in (Dims(3, 8, 24, 64), Dims(1, 16, 16, 32)):
    made = s.encoding.constants(dims, dims.train_length)
    # Shapes alone: nothing is computed.
    mine, _ = jax.eval_shape(
      lambda key, made, dims=dims: s.encoding.heads(s.encoding.prepare(s.encoding.init(key, dims), made)), jax.random.key(0), made
    )
    wrong = [x.shape for x in jax.tree.leaves(mine) if not x.shape or x.shape[0] != dims.num_heads]
    require(not wrong, f"{dims.num_heads} heads were asked for, got {wrong}")
  return "1, 3 and 4 heads"
