"""The table of the demo: for each phase, the I/O of the guests and the I/O of the store that it caused."""

HEADER = (
    *("", "guest reads", "", "guest writes", "", "store reads", "", "store writes", ""),
    "guest ops",
)
UNITS = ("phase", "ops", "bytes", "ops", "bytes", "ops", "bytes", "ops", "bytes", "/store op")


def size(n):
    """Formats a number of bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" or n >= 100 else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


class Sum:
    """Guest and store counters between two samples."""

    def __init__(self, before, after):
        def delta(get):
            return [get(after)[k] - get(before)[k] for k in ("ops", "bytes")]

        def guests(kind):
            each = [delta(lambda s, n=n: s["guests"][n][kind]) for n in after["guests"]]
            return [sum(column) for column in zip(*each)]

        self.guest_read, self.guest_write = guests("read"), guests("write")
        self.store_read = delta(lambda s: s["store"]["read"])
        self.store_write = delta(lambda s: s["store"]["write"])

    def row(self, label, share=1):
        """A row of the table, of all guests or (divided by `share`) of the average one."""
        cells = [label]
        for ops, amount in (self.guest_read, self.guest_write, self.store_read, self.store_write):
            cells += [f"{ops / share:,.0f}", size(amount / share)]
        store = self.store_read[0] + self.store_write[0]
        guest = self.guest_read[0] + self.guest_write[0]
        return [*cells, f"{guest / store:,.1f}" if store else "no store op"]


def guest_rows(before, after, names):
    """One row for each guest, without store columns: the store's I/O cannot be divided between guests."""
    for name in names:
        cells = [f"  {name}"]
        for kind in ("read", "write"):
            for unit, show in (("ops", "{:,}".format), ("bytes", size)):
                cells.append(show(after["guests"][name][kind][unit] - before["guests"][name][kind][unit]))
        yield [*cells, *[""] * 5]


def section(title, phases, samples, names):
    rows = [[title, *[""] * 9]]
    for phase, before, after in zip(phases, samples, samples[1:]):
        rows.append(Sum(before, after).row(f" {phase}"))
        if len(names) > 1:
            rows.append(Sum(before, after).row("  per guest", len(names)))
    rows.append(Sum(samples[0], samples[-1]).row(" in all"))
    if len(names) > 1:
        rows.append(Sum(samples[0], samples[-1]).row("  per guest", len(names)))
        rows += guest_rows(samples[0], samples[-1], names)
    return rows


def table(phases, cold, storm, names):
    """The whole table as text."""
    rows = [list(HEADER), list(UNITS)]
    rows += section("1 guest, cold", phases, cold, ["reference"])
    rows += section(f"{len(names)} guests, cold", phases, storm, names)
    widths = [max(len(r[i]) for r in rows) for i in range(len(UNITS))]
    # A heading spans two columns; only the second one grows for it.
    for i in range(1, 9, 2):
        widths[i] = max(len(r[i]) for r in rows[1:])
        pair = len(HEADER[i])
        widths[i + 1] = max(max(len(r[i + 1]) for r in rows[1:]), pair - widths[i] - 2)
    lines = [heading(widths)]
    for row in rows[1:]:
        cells = [row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]
        lines.append("  ".join(cells).rstrip())
    lines.insert(2, "-" * max(map(len, lines)))
    return "\n".join(lines)


def heading(widths):
    text = " " * widths[0]
    for i in range(1, 9, 2):
        text += "  " + HEADER[i].rjust(widths[i] + 2 + widths[i + 1])
    return text + "  " + HEADER[9].rjust(widths[9])


def verdicts(cold, storm):
    """The promises that this run can verify."""
    one, all_ = Sum(cold[0], cold[1]), Sum(storm[0], storm[1])
    reads, read = (ratio(all_.store_read[i], one.store_read[i]) for i in (0, 1))
    writes = ratio(all_.store_write[0], all_.guest_write[0])
    return "\n".join([
        verdict("store reads of the boot storm per read of one cold boot", reads, "{:.2f}", 1.05),
        f"  in bytes: {read:.2f} (a read ahead includes small gaps instead of making two reads)",
        verdict("store writes of the boot storm per guest write", writes, "{:.2%}", 0.01),
    ])


def ratio(part, whole):
    return part / whole if whole else float("inf") if part else 0.0


def verdict(what, value, form, limit):
    met = "met" if value <= limit else "NOT met"
    return f"{what}: {form.format(value)} (promised: at most {form.format(limit)}; {met})"
