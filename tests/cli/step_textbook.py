"""Muon and AdamW in float64 and plain loops, from the papers; shares nothing with the library."""
import math

KELLER_JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
YOU = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
       (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]
CLASSICAL = [(15 / 8, -10 / 8, 3 / 8)] * 5
DEEPSEEK_V4 = [(3.4445, -4.7750, 2.0315)] * 8 + [(2.0, -1.5, 0.5)] * 2
CUBIC = [(3.3656576, -3.3420992, 0), (2.5744352, -1.4957376, 0), (2.5368962, -1.4312570, 0),
         (2.4418906, -1.2764040, 0), (2.2230472, -0.9630650, 0)]
TURBO_MUON = [(4.6051, -9.6552, 5.6769), (4.7505, -6.0861, 2.1790), (2.7763, -2.3190, 0.5523),
              (2.4231, -2.2861, 0.8193)]


def solve(a, b):
    n = len(b)
    a = [row[:] + [b[i]] for i, row in enumerate(a)]
    for k in range(n):
        pivot = max(range(k, n), key=lambda i: abs(a[i][k]))
        a[k], a[pivot] = a[pivot], a[k]
        for i in range(k + 1, n):
            f = a[i][k] / a[k][k]
            a[i] = [x - f * y for x, y in zip(a[i], a[k])]
    out = [0.0] * n
    for k in reversed(range(n)):
        out[k] = (a[k][n] - sum(a[k][j] * out[j] for j in range(k + 1, n))) / a[k][k]
    return out


def minimax(low, high):
    """Odd quintic closest to 1 on [low, high], by exchange (arXiv 2505.16932)."""
    if low / high >= 1 - 5e-6:
        return 15 / 8 / high, -10 / 8 / high**3, 3 / 8 / high**5
    q, r, last = (3 * low + high) / 4, (low + 3 * high) / 4, None
    for _ in range(100):
        rows = [[x, x**3, x**5, sign] for x, sign in zip((low, q, r, high), (1, -1, 1, -1))]
        a, b, c, e = solve(rows, [1.0] * 4)
        if last is not None and abs(e - last) <= 1e-15:
            break
        last = e
        root = math.sqrt(9 * b * b - 20 * a * c)
        q, r = sorted((math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))))
    return a, b, c


def polar_express(steps=5, lower_bound=1e-3, cushion=0.02, safety=1.02):
    out, low, high = [], lower_bound, 1.0
    for t in range(steps):
        a, b, c = minimax(max(low, cushion * high), high)

        def p(x):
            return a * x + b * x**3 + c * x**5
        if cushion * high > low:
            g = 2 / (p(low) + p(high))
            a, b, c = a * g, b * g, c * g
        if t + 1 < steps:
            a, b, c = a / safety, b / safety**3, c / safety**5
        out.append((a, b, c))
        low = a * low + b * low**3 + c * low**5
        high = 2 - low
    return out


def divided(coefficients, safety):
    """A finished list that takes its argument divided by `safety`."""
    return [(a / safety, b / safety**3, c / safety**5) for a, b, c in coefficients]


def product(a, b):
    columns = list(zip(*b))
    return [[math.fsum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def transposed(a):
    return [list(column) for column in zip(*a)]


def newton_schulz(u, coefficients, safety, normalize="prescaled", eps=0.0, aol=False):
    """normalize: what a matrix is divided by; aol: its rows (short side) by the roots of the
    absolute row sums of their Gram matrix instead (arXiv 2512.04632)."""
    norm = math.sqrt(math.fsum(x * x for row in u for x in row))
    if norm == 0:
        return [[0.0] * len(row) for row in u]
    tall = len(u) > len(u[0])
    x = transposed(u) if tall else u
    if aol:
        gram = product(x, transposed(x))
        sums = [math.fsum(abs(value) for value in row) for row in gram]
        x = [[value / (safety * math.sqrt(max(s, 1e-7))) for value in row]
             for row, s in zip(x, sums)]
    else:
        divisor = {"prescaled": safety * norm, "add_eps": safety * norm + eps,
                   "max_eps": max(safety * norm, eps)}[normalize]
        x = [[value / divisor for value in row] for row in x]
    for a, b, c in coefficients:
        gram = product(x, transposed(x))
        square = product(gram, gram)
        poly = [[b * g + c * s for g, s in zip(gr, sr)] for gr, sr in zip(gram, square)]
        x = [[a * v + w for v, w in zip(xr, wr)] for xr, wr in zip(x, product(poly, x))]
    return transposed(x) if tall else x


SCALES = {
    "original": lambda r, c: math.sqrt(max(1, r / c)),
    "match_rms": lambda r, c: 0.2 * math.sqrt(max(r, c)),
    "ratio": lambda r, c: math.sqrt(r / c),
    "max_dim": lambda r, c: math.sqrt(max(r, c)),
    "none": lambda r, c: 1.0,
}


def decay(kind, rate, amount, weight, update):
    """What the weight loses; `update` is the direction that is subtracted."""
    if kind == "independent":
        return amount * weight
    if kind == "lr_squared":
        return rate * rate * amount * weight
    if kind == "cautious" and update * weight < 0:
        return 0.0
    return rate * amount * weight


def normuon_scaled(o, axis, beta2, moments):
    """NorMuon in the row form; `moments` (of one matrix) change in place."""
    if axis == "columns" or (axis == "longer" and len(o) < len(o[0])):
        return transposed(normuon_scaled(transposed(o), "rows", beta2, moments))
    cols = len(o[0])
    v = [math.fsum(x * x for x in row) / cols for row in o]
    if not moments:
        moments.extend([0.0] * len(o))
    for i, x in enumerate(v):
        moments[i] = beta2 * moments[i] + (1 - beta2) * x
    q = [1 / (math.sqrt(x) + 1e-10) for x in moments]
    n0 = math.sqrt(cols * math.fsum(v))
    n1 = math.sqrt(cols * math.fsum(x * y * y for x, y in zip(v, q)))
    return [[x * f * n0 / (n1 + 1e-10) for x in row] for row, f in zip(o, q)]


def chunks(indices, count):
    """Ceil chunks, fewer where they would be empty."""
    size = -(-len(indices) // count)
    return [indices[i:i + size] for i in range(0, len(indices), size)]


def cut_into(parts, grid):
    """The blocks of a grid in every part."""
    return [(r, c, *rest) for rows, cols, *rest in parts
            for r in chunks(list(rows), grid[0]) for c in chunks(list(cols), grid[1])]


def same(x):
    return x


def muon_step(w, m, g, lr, coefficients, safety=1.0, momentum=0.95, kind="ema", nesterov=True,
              scale="match_rms", scale_factor=1.0, weight_decay=0.1, decay_kind="decoupled",
              parts=None, normuon=None, stats=None, normalize="prescaled", eps=0.0, aol=False,
              grid=None, grid_factor=1.0, transport=same, t=1):
    """Rows of w and m change in place, in step t (from 1). parts: [(rows, cols, factor, NorMuon's
    axis)] of indices, the axis may be left out; or None. normuon: (axis, beta2); its moments are
    kept in stats. grid: blocks of a block step, whose updates take the rate times grid_factor.
    transport: rounding of what travels."""
    new = 1.0 if kind == "heavy_ball" else 1 - momentum
    of_g, of_m = (new, momentum) if nesterov else (0.0, 1.0)
    if kind == "ema_corrected":
        of_g /= 1 - momentum**t
        of_m /= 1 - momentum**(t + nesterov)
    rows, cols = len(w), len(w[0])
    u = []
    for i in range(rows):
        m[i] = [momentum * a + new * b for a, b in zip(m[i], g[i])]
        u.append([of_g * b + of_m * a for a, b in zip(m[i], g[i])])
        u[i] = [transport(x) for x in u[i]]
    parts = parts or [(range(rows), range(cols), 1.0)]
    for index, part in enumerate(cut_into(parts, grid) if grid else parts):
        part_rows, part_cols, factor, *axis = part
        o = newton_schulz([[u[i][j] for j in part_cols] for i in part_rows], coefficients, safety,
                          normalize, eps, aol)
        if normuon:
            o = normuon_scaled(o, *(axis or normuon[:1]), normuon[1], stats.setdefault(index, []))
        o = [[transport(x) for x in line] for line in o]
        rate = lr * factor
        step = rate * scale_factor * SCALES[scale](len(part_rows), len(part_cols))
        step *= grid_factor if grid else 1.0
        for i, line in zip(part_rows, o):
            for j, value in zip(part_cols, line):
                w[i][j] -= decay(decay_kind, rate, weight_decay, w[i][j], value) + step * value


def adamw_step(w, m, v, g, t, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01,
               decay_kind="decoupled", form="torch"):
    for i, x in enumerate(g):
        m[i] = betas[0] * m[i] + (1 - betas[0]) * x
        v[i] = betas[1] * v[i] + (1 - betas[1]) * x * x
        if form == "torch":
            root = math.sqrt(v[i] / (1 - betas[1]**t)) + eps
            update = m[i] / (1 - betas[0]**t) / root
        elif form == "nesterov":
            mean = betas[0] * m[i] / (1 - betas[0]**(t + 1)) + (1 - betas[0]) * x / (1 - betas[0]**t)
            update = mean / (math.sqrt(v[i] / (1 - betas[1]**t)) + eps)
        else:
            update = math.sqrt(1 - betas[1]**t) / (1 - betas[0]**t) * m[i] / (math.sqrt(v[i]) + eps)
        w[i] -= decay(decay_kind, lr, weight_decay, w[i], update) + lr * update
