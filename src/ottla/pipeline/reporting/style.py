"""Defines the page's style: one column on a phone, more on wide screens, A4 on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --good: #1f6b4a; --bad: #a32a22;
 --ink: #1d2327; --soft: #5c666d; --line: #d9dee1; --paper: #fff; --tint: #f4f6f7;
 --blue: #4a78b5; --orange: #d9902f; --green: #2f7d5b; --purple: #6b5b95; --red: #b8352c; --teal: #3a8f9e;
 --brown: #a4702e; --olive: #7a8450; --grey: #8a8a8a; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ea; --soft: #9aa5ac; --line: #353d42; --paper: #14181a; --tint: #1e2427; --good: #6fc79c;
    --bad: #f0837a; --blue: #82aef0; --orange: #f2ae4e; --green: #57c795; --purple: #b3a0ee; --red: #f4776b;
    --teal: #5cc9db; --brown: #d9a25c; --olive: #b5c36f; --grey: #b0b8bd; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .7rem; }
.soft { color: var(--soft); }
header p { margin: .3rem 0 0; }
header a { text-decoration: none; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: 1rem 0 0; font-size: .9rem; }
nav li { list-style: none; }
a { color: inherit; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
figure { margin: 0; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
details { margin-top: .5rem; font-size: .85rem; }
summary { color: var(--soft); cursor: pointer; }
details .wide { max-height: 20rem; overflow: auto; }
section { margin-top: 2rem; break-inside: avoid; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; }
.figures div { background: var(--tint); border-radius: .4rem; padding: .6rem .8rem; }
.figures b { display: block; font-size: 1.45rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.figures b.long { font-size: .95rem; line-height: 1.3; min-height: 1.74rem; padding-top: .25rem; }
.figures span { color: var(--soft); font-size: .85rem; }
.chart { border-bottom: 1px solid var(--line); position: relative; padding-top: 1.3rem; }
.chart .top { position: absolute; top: 0; left: 0; font-size: .8rem; color: var(--soft); }
.chart svg { display: block; width: 100%; height: 10rem; border-top: 1px dashed var(--line); }
.ticks { position: relative; height: 1.7rem; font-size: .8rem; color: var(--soft); }
.ticks span { position: absolute; width: 16%; margin-left: -8%; padding-top: .45rem; text-align: center;
  line-height: 1.25; }
.ticks .first { margin-left: 0; text-align: left; }
.ticks .last { margin-left: -16%; text-align: right; }
.ticks span::before { content: ""; position: absolute; top: 0; left: 50%; height: .35rem;
  border-left: 1px solid var(--soft); }
.ticks .first::before { left: 0; }
.ticks .last::before { left: 100%; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; margin: .6rem 0 0; padding: 0; }
.legend li { list-style: none; }
.legend i, td i { display: inline-block; width: .75em; height: .75em; border-radius: .15em; margin-right: .4em; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2.5rem; }
thead { display: table-header-group; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .8rem; vertical-align: bottom; }
th, td { padding: .3rem .5rem .3rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; padding-right: 0; padding-left: .6rem; white-space: nowrap; }
td.n + td:not(.n), th.n + th:not(.n) { padding-left: 1.2rem; }
section > .soft { margin: .5rem 0 0; font-size: .9rem; }
h3 { font-size: .95rem; margin: .8rem 0 .3rem; }
tr:last-child td { border-bottom: 0; }
tr.sum td { font-weight: 600; border-top: 2px solid var(--line); }
td.name { overflow-wrap: anywhere; min-width: 9rem; }
td.name svg { display: block; width: 100%; height: .4rem; margin-top: .2rem; }
.wide { overflow-x: auto; }
.wide th.n { white-space: normal; }
@media (max-width: 40rem) {
  .ticks { height: 2.7rem; }
}
@media (max-width: 30rem) {
  .wide table { font-size: .76rem; }
  .wide th { font-size: .7rem; }
  .wide th, .wide td { padding: .3rem 0 .3rem .35rem; }
  .wide td.name { min-width: 0; }
  .wide th, .wide th.n { writing-mode: vertical-rl; transform: rotate(180deg); white-space: nowrap; text-align: left; }
  .wide th:first-child, .wide td:first-child { padding-left: 0; }
}
.good { color: var(--good); } .bad { color: var(--bad); }
footer { margin-top: 2.5rem; font-size: .85rem; color: var(--soft); }
@media print {
  nav, details { display: none; }
  @page { size: A4; margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  section { margin-top: 1.3rem; }
  .figures div { border: 1px solid var(--line); }
  .two { grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
  .chart svg { height: 6rem; }
  th, td { padding-top: .16rem; padding-bottom: .16rem; }
  .wide { overflow: visible; }  /* paper cannot scroll */
  .wide table { font-size: .75rem; }
  .wide th { font-size: .68rem; }
  .wide th.n, .wide td.n { padding-left: .35rem; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
