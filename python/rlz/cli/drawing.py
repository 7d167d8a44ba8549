"""The graph of a run for people: a tree for the terminal, and Mermaid for documents."""

from collections.abc import Iterator

from rich.tree import Tree

from rlz.graph import Graph, Node, Stream
from rlz.placement import Placement

_MIB = 2**20


def tree(title: str, graph: Graph, placement: Placement) -> Tree:
    """Every node with its workers and streams, then every stream with its row and its ends."""
    rule = graph.rule
    held = "free" if rule.ratio is None else f"{rule.ratio[0] / rule.ratio[1]:g} updates per env step"
    root = Tree(f"[bold]{title}[/bold]  {rule.total_timesteps:,} env steps, updates after {rule.starts:,}, {held}")
    nodes = root.add("workers")
    for node in graph.nodes:
        branch = nodes.add(f"[bold]{node.role}[/bold] x {placement.count(node)}  {_place(node, placement)}")
        branch.add(f"{node.worker}; does {node.progress.replace('_', ' ')}; its death: {node.death}")
        for verb, names in (("takes", node.takes), ("gives", node.gives)):
            if names:
                branch.add(f"{verb} {', '.join(names)}")
    streams = root.add("streams")
    for stream in graph.streams:
        branch = streams.add(f"[bold]{stream.name}[/bold]  {_contents(stream, graph, placement)}")
        givers, takers = _ends(graph, stream)
        branch.add(f"{', '.join(givers)} -> {', '.join(takers)}")
        fields = stream.fields if stream.kind != "parameters" else ()
        if fields:
            branch.add(", ".join(f"{name} {dtype}{list(shape) if shape else ''}".replace("[", r"\[")
                                 for name, dtype, shape in fields))  # fmt: skip
    return root


def mermaid(graph: Graph, placement: Placement) -> str:
    """A flowchart: a box per node, an arrow per stream and pair of ends."""
    return "\n".join(["flowchart LR", *_mermaid(graph, placement)])


def _mermaid(graph: Graph, placement: Placement) -> Iterator[str]:
    for node in graph.nodes:
        yield f'    {node.role}["{node.role} x {placement.count(node)}<br/>{_place(node, placement)}"]'
    for stream in graph.streams:
        givers, takers = _ends(graph, stream)
        for giver in givers:
            for taker in takers:
                yield f'    {giver} -->|"{stream.name}: {stream.kind}, {stream.row_bytes:,} bytes"| {taker}'


def _ends(graph: Graph, stream: Stream) -> tuple[list[str], list[str]]:
    givers = [node.role for node in graph.nodes if stream.name in node.gives]
    return givers, [node.role for node in graph.nodes if stream.name in node.takes]


def _place(node: Node, placement: Placement) -> str:
    """Where the workers of a node run."""
    together = any(node.role in group for group in placement.groups)
    parts = ["in one process, in turns" if together else "a process each" if placement.count(node) > 1 else "a process"]
    if node.steps_environments:
        parts.append(f"{placement.lanes} environment{'s' * (placement.lanes > 1)}")
    if devices := placement.devices.get(node.role):
        parts.append(f"on {', '.join(devices)}")
    if cores := placement.cores.get(node.role):
        parts.append("cores " + "; ".join(",".join(map(str, one)) for one in cores))
    return ", ".join(parts)


def _contents(stream: Stream, graph: Graph, placement: Placement) -> str:
    """What a stream holds, and what that takes."""
    if stream.kind == "parameters":
        return f"parameters: {len(stream.fields)} tensors, {stream.row_bytes:,} bytes a version"
    held = {
        "replay": lambda: f"{stream.options['capacity']:,} rows",
        "queue": lambda: f"{stream.options['segments']:,} segments of {stream.options['length']:,} steps",
        "inference": lambda: f"a request and an answer in each of {placement.lanes:,} lanes",
    }[stream.kind]()
    size = stream.nbytes(placement.lanes, placement.takers(graph, stream.name)) / _MIB
    return f"{stream.kind}: {held}, {stream.row_bytes:,} bytes a row, {size:,.1f} MiB"
