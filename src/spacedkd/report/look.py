"""How the page looks: one style sheet, light and dark, colours that colour-blind readers can tell apart (Okabe-Ito)."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --ink: #1a1d21; --soft: #596069; --rule: #d9dde2; --grid: #e6e9ed;
  --student: #0072b2; --leader: #d55e00; --middle-1: #009e73; --middle-2: #a8558a;
  --student-ink: #00639b; --leader-ink: #b04c00; --middle-1-ink: #00734f; --middle-2-ink: #8f4475;
  --named: #eef4f9; --good: #00734f; --bad: #b04c00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1c2026; --ink: #e7eaee; --soft: #a3abb5; --rule: #353b44; --grid: #2a3038;
    --student: #56b4e9; --leader: #e69f00; --middle-1: #2fbf95; --middle-2: #cc79a7;
    --student-ink: #7cc6f0; --leader-ink: #f0b232; --middle-1-ink: #4fd0aa; --middle-2-ink: #dc97bd;
    --named: #1c2a36; --good: #4fd0aa; --bad: #f0b232;
  }
}
*, ::before, ::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word;
}
main, header, footer { max-width: 1136px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 40px; }
h1 {
  font-size: clamp(1.6rem, 1.2rem + 1.8vw, 2.4rem); line-height: 1.18; letter-spacing: -0.015em;
  margin: 4px 0 12px;
}
h2 { font-size: 1.3rem; line-height: 1.25; letter-spacing: -0.01em; margin: 0 0 6px; }
h3 { font-size: 0.95rem; line-height: 1.3; margin: 0; }
p { margin: 0 0 12px; max-width: 70ch; }
.kind { color: var(--soft); font-size: 0.85rem; margin: 0; }
.setting { font-size: 1.06rem; color: var(--soft); }
section { margin-top: 52px; border-top: 1px solid var(--rule); padding-top: 22px; }
.outcome {
  background: var(--card); border-left: 4px solid var(--student); padding: 16px 18px 8px;
  margin: 22px 0 0;
}
.outcome > p:first-child { font-size: 1.16rem; font-weight: 650; line-height: 1.4; }
.outcome ul { margin: 0 0 10px; padding: 0; list-style: none; }
.outcome li { padding: 5px 0; border-top: 1px solid var(--rule); }
.note, figcaption { color: var(--soft); font-size: 0.88rem; line-height: 1.5; max-width: 76ch; }
.note { margin: 0 0 10px; }
.hint { display: none; margin: 0; }
figure { margin: 20px 0 0; }
figcaption { margin-top: 10px; }
.panels { display: grid; gap: 26px 24px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 320px), 1fr)); }
.panel { min-width: 0; max-width: 460px; }
.panel small { display: block; color: var(--soft); font-size: 0.82rem; font-weight: 400; min-height: 1.3em; }
.pair { display: grid; gap: 26px 40px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.pair > figure { min-width: 0; }
svg { display: block; width: 100%; height: auto; overflow: visible; font-family: inherit; }
.panel svg { margin-top: 6px; }

/* pictures */
.tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; }
.mark { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 3 3; }
.confidence { stroke: var(--student); stroke-width: 2.2; stroke-linecap: round; }
.mean { fill: var(--student); stroke: var(--page); stroke-width: 1.2; }
.seed { fill: var(--ink); fill-opacity: 0.5; }
.bar { fill: var(--student); }
path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
path.student { stroke: var(--student); } path.leader { stroke: var(--leader); }
path.middle-1 { stroke: var(--middle-1); } path.middle-2 { stroke: var(--middle-2); }
text.student { fill: var(--student-ink); } text.leader { fill: var(--leader-ink); }
text.middle-1 { fill: var(--middle-1-ink); } text.middle-2 { fill: var(--middle-2-ink); }
.one { stroke-width: 1; stroke-opacity: 0.38; }
.all { stroke-width: 2.4; }
.all.leader { stroke-dasharray: 6 4; }
.end { font-size: 12px; font-weight: 600; font-variant-numeric: tabular-nums; }
.band { stroke-linecap: butt; }
.inset { fill: var(--card); stroke: var(--rule); }
.legend {
  display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 0.9rem; margin: 14px 0 0; padding: 0;
  list-style: none;
}
.legend li { display: flex; align-items: center; gap: 8px; }
.legend svg { width: 30px; height: 10px; }

/* dots and intervals */
.forest .row { display: grid; grid-template-columns: 8.5rem minmax(0, 1fr) auto; column-gap: 12px; }
.forest .row.named { background: var(--named); }
.forest .strip { position: relative; min-height: 32px; }
.forest .strip svg { position: absolute; inset: 0; height: 100%; }
.forest .axis-row .strip { grid-column: 2; min-height: 18px; }
.forest .name { font-size: 0.9rem; line-height: 1.25; overflow-wrap: anywhere; padding: 3px 0 3px 6px; }
.forest .value { font-size: 0.86rem; font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
.forest .value, .forest .axis-row::after { width: 5.6rem; padding: 3px 6px 0 0; }
.forest .axis-row::after { content: ""; }
.forest.narrow .value, .forest.narrow .axis-row::after { width: 3.4rem; }
@media (max-width: 560px) {
  .forest .row { grid-template-columns: minmax(0, 1fr) auto; padding-top: 5px; border-top: 1px solid var(--grid); }
  .forest .strip, .forest .axis-row .strip { grid-column: 1 / -1; grid-row: 2; }
  .forest .axis-row .strip { grid-row: 1; }
  .forest .axis-row::after { content: none; }
  .forest .name { font-weight: 600; }
}

/* tables */
.scroll { overflow-x: auto; margin: 18px 0 10px; border: 1px solid var(--rule); }
.scroll:focus-visible, pre:focus-visible, summary:focus-visible {
  outline: 2px solid var(--student); outline-offset: 2px;
}
table {
  border-collapse: separate; border-spacing: 0; width: 100%; font-size: 0.9rem;
  font-variant-numeric: tabular-nums;
}
th, td {
  padding: 9px 14px; text-align: right; vertical-align: top; white-space: nowrap;
  border-top: 1px solid var(--rule);
}
thead th {
  border-top: 0; background: var(--card); font-weight: 600; vertical-align: bottom;
  white-space: normal; min-width: 5.4rem;
}
tbody th, thead th:first-child { text-align: left; }
tbody th { font-weight: 600; white-space: normal; min-width: 8.2rem; }
tbody th, thead th:first-child {
  position: sticky; left: 0; background: var(--page); border-right: 1px solid var(--rule);
}
thead th:first-child { background: var(--card); }
tr.named > * { background: var(--named); }
td small, th small { display: block; color: var(--soft); font-weight: 400; font-size: 0.84em; }
.range { display: block; }
.half, .none { color: var(--soft); }
.verdict { margin-left: 8px; color: var(--soft); }
.better { color: var(--good); font-weight: 600; } .worse { color: var(--bad); font-weight: 600; }
.unseen {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap;
}
.pair h3 { margin-bottom: 8px; }
@media (max-width: 560px) { .hint { display: block; } th, td { padding: 8px 10px; } tbody th { max-width: 9.5rem; } }

details.more { margin-top: 14px; padding: 10px 0; }
details.more > summary { font-weight: 600; color: var(--student-ink); }
details.more > summary ~ * { margin-top: 14px; }

/* how it was made */
details { border-top: 1px solid var(--rule); padding: 8px 0; }
code { white-space: pre; }
summary { cursor: pointer; }
summary small { display: block; color: var(--soft); font-size: 0.84rem; padding-left: 1.1em; }
details p { font-size: 0.88rem; color: var(--soft); margin: 8px 0; max-width: none; overflow-wrap: anywhere; }
pre {
  background: var(--card); padding: 12px 14px; overflow-x: auto; font-size: 0.82rem; line-height: 1.45;
  margin: 8px 0;
}
footer { padding: 40px 16px 48px; color: var(--soft); font-size: 0.85rem; }
"""
