/**
 * Charts as SVG text, without a dependency: lines (in one panel or several with the same axes) and horizontal bars.
 *
 * A chart is read without the text around it: its title is a sentence, its axes carry their units, its legend names every
 * line. Lines differ by colour, by marker and by dash, so that a print without colours and a reader without them lose
 * nothing. It lies on a ground of its own, which follows the reader's light or dark preference.
 */
import { numberText, type Scale, type ScaleWish, scaleOf } from './chart-scale.ts';

export interface Axis extends Partial<ScaleWish> {
  /** With its unit: `time to ready, p95 [s]`. */
  readonly label: string;
}

export interface Point {
  readonly x: number;
  /** null: a gap in the line. */
  readonly y: number | null;
  /** What the repeats gave, as a band around the line: least and most. */
  readonly low?: number;
  readonly high?: number;
}

export interface Line {
  /** Lines of the same name look the same in all panels and stand in the legend once. */
  readonly name: string;
  readonly points: readonly Point[];
  /** `plain`: no markers, for a course over time with many points. */
  readonly plain?: boolean;
}

/** A value to compare with: a limit, a goal, the measured capacity. */
export interface Mark {
  readonly axis: 'x' | 'y';
  readonly at: number;
  readonly label: string;
}

export interface Panel {
  readonly title: string;
  readonly lines: readonly Line[];
  readonly marks?: readonly Mark[];
}

export interface LineChart {
  /** A sentence that says what is seen. */
  readonly title: string;
  /** What was measured and how: machine, repeats, what the band is. */
  readonly subtitle?: string;
  readonly x: Axis;
  readonly y: Axis;
  /** At least one. All have the same axes; three stand beside each other. */
  readonly panels: readonly Panel[];
  /** Panels beside each other; 1 to 4. */
  readonly columns?: number;
}

export interface Bar {
  /** Bars of the same name have the same colour in all groups. */
  readonly name: string;
  /** null: not measured, and the chart says so. */
  readonly value: number | null;
  /** Of the repeats: a whisker. */
  readonly low?: number;
  readonly high?: number;
}

export interface BarGroup {
  readonly name: string;
  readonly bars: readonly Bar[];
  /** A goal or limit of this group alone. */
  readonly mark?: { readonly at: number; readonly label: string };
}

export interface BarChart {
  readonly title: string;
  readonly subtitle?: string;
  /** Along which the bars lie. */
  readonly value: Axis;
  readonly groups: readonly BarGroup[];
}

/** Throws `RangeError` where a value is not finite, or not above 0 on a log axis, and where there is nothing to draw. */
export function lineChart(chart: LineChart): string {
  const points = chart.panels.flatMap(({ lines }) => lines.flatMap((line) => line.points));
  const marks = chart.panels.flatMap((panel) => panel.marks ?? []);
  const on = (axis: 'x' | 'y') => marks.filter((mark) => mark.axis === axis).map(({ at }) => at);
  const values = points.flatMap(({ y, low, high }) => [y, low, high]).filter((value) => typeof value === 'number');
  const x = scaleOf([...points.map((point) => point.x), ...on('x')], { kind: 'linear', ...chart.x });
  const y = scaleOf([...values, ...on('y')], { kind: 'linear', ...chart.y });
  const names = [...new Set(chart.panels.flatMap(({ lines }) => lines.map(({ name }) => name)))];
  const plain = chart.panels.every(({ lines }) => lines.every((line) => line.plain));
  const head = headOf(chart, names, plain ? 'plain' : 'line');
  const columns = Math.min(chart.columns ?? 3, chart.panels.length);
  const width = (page.width - page.edge) / columns;
  const height = columns === 1 ? 380 : 300;
  const drawn = chart.panels.map((panel, index) => {
    const left = page.edge / 2 + (index % columns) * width;
    const top = head.height + Math.floor(index / columns) * height;
    const frame = { left: left + 62, top: top + 30, width: width - 76, height: height - 92 };
    return panelText(panel, frame, { x, y, names, xLabel: chart.x.label, yLabel: chart.y.label });
  });
  const rows = Math.ceil(chart.panels.length / columns);
  return svgText(chart, head.height + rows * height + 8, [head.text, ...drawn]);
}

/** Throws as `lineChart` does. */
export function barChart(chart: BarChart): string {
  const bars = chart.groups.flatMap((group) => group.bars);
  const marks = chart.groups.flatMap(({ mark }) => (mark ? [mark.at] : []));
  const values = bars.flatMap(({ value, low, high }) => [value, low, high]).filter((each) => typeof each === 'number');
  const scale = scaleOf([...values, ...marks], { kind: 'linear', ...chart.value });
  const names = [...new Set(bars.map(({ name }) => name))];
  const head = headOf(chart, names, 'bar');
  const longest = Math.max(...chart.groups.map(({ name }) => textWidth(name, 13)));
  const left = Math.min(longest, 300) + page.edge + 12;
  const frame = { left, top: head.height + 8, width: page.width - left - 90, height: 0 };
  const drawn: string[] = [];
  let top = frame.top;
  for (const group of chart.groups) {
    drawn.push(groupText(group, { ...frame, top }, scale, names));
    top += groupHeight(group);
  }
  const grid = scale.ticks.map((tick) => {
    const x = round(frame.left + scale.at(tick) * frame.width);
    return `${lineText(x, frame.top, x, top, 'grid')}${textText(x, top + 18, numberText(tick), 'tick middle')}`;
  });
  const label = textText(frame.left + frame.width / 2, top + 40, chart.value.label, 'label middle');
  return svgText(chart, top + 56, [head.text, ...grid, ...drawn, label]);
}

/* ------------------------------------------------------------------------------ panels */

interface Frame {
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

interface Axes {
  readonly x: Scale;
  readonly y: Scale;
  readonly names: readonly string[];
  readonly xLabel: string;
  readonly yLabel: string;
}

function panelText(panel: Panel, frame: Frame, axes: Axes): string {
  const bottom = frame.top + frame.height;
  const atX = (value: number) => round(frame.left + axes.x.at(value) * frame.width);
  const atY = (value: number) => round(bottom - axes.y.at(value) * frame.height);
  const right = frame.left + frame.width;
  const middle = frame.left + frame.width / 2;
  const parts = [textText(middle, frame.top - 12, panel.title, 'panel middle')];
  for (const tick of axes.y.ticks) {
    parts.push(lineText(frame.left, atY(tick), right, atY(tick), 'grid'));
    parts.push(textText(frame.left - 8, atY(tick) + 4, numberText(tick), 'tick end'));
  }
  for (const tick of axes.x.ticks) {
    parts.push(lineText(atX(tick), bottom, atX(tick), bottom + 5, 'axis'));
    parts.push(textText(atX(tick), bottom + 20, numberText(tick), 'tick middle'));
  }
  parts.push(lineText(frame.left, bottom, right, bottom, 'axis'));
  parts.push(textText(middle, bottom + 42, axes.xLabel, 'label middle'));
  const turned = `rotate(-90 ${round(frame.left - 46)} ${round(frame.top + frame.height / 2)})`;
  parts.push(textText(frame.left - 46, frame.top + frame.height / 2, axes.yLabel, 'label middle', turned));
  for (const mark of panel.marks ?? []) parts.push(markText(mark, frame, mark.axis === 'x' ? atX : atY));
  for (const line of panel.lines) parts.push(drawnLine(line, axes.names.indexOf(line.name), atX, atY));
  return `<g>${parts.join('')}</g>`;
}

function markText(mark: Mark, frame: Frame, at: (value: number) => number): string {
  const place = at(mark.at);
  if (mark.axis === 'y') {
    const line = lineText(frame.left, place, frame.left + frame.width, place, 'mark');
    return line + textText(frame.left + 5, place - 5, mark.label, 'note');
  }
  const line = lineText(place, frame.top, place, frame.top + frame.height, 'mark');
  // The label turns to the side that has room for it.
  const side = place > frame.left + frame.width / 2 ? ['end', -5] : ['', 5];
  return line + textText(place + Number(side[1]), frame.top + 11, mark.label, `note ${side[0]}`);
}

/** Runs of points without a gap; a gap is a point whose `y` is null. */
function runsOf(points: readonly Point[]): (Point & { readonly y: number })[][] {
  const runs: (Point & { readonly y: number })[][] = [[]];
  for (const point of points) {
    if (point.y === null) runs.push([]);
    else runs.at(-1)?.push({ ...point, y: point.y });
  }
  return runs.filter((run) => run.length > 0);
}

function drawnLine(line: Line, index: number, atX: (x: number) => number, atY: (y: number) => number): string {
  const style = `s${index % styles.length}`;
  return runsOf(line.points)
    .map((run) => {
      const path = run.map(({ x, y }) => `${atX(x)},${atY(y)}`).join(' ');
      const above = run.map(({ x, y, high }) => `${atX(x)},${atY(high ?? y)}`);
      const below = run.map(({ x, y, low }) => `${atX(x)},${atY(low ?? y)}`).reverse();
      const banded = run.some(({ low, high }) => low !== undefined || high !== undefined);
      const band = banded ? `<polygon class="band f-${style}" points="${[...above, ...below].join(' ')}"/>` : '';
      const dots = line.plain ? '' : run.map(({ x, y }) => markerText(index, atX(x), atY(y))).join('');
      return `${band}<polyline class="line ${style}" points="${path}"/>${dots}`;
    })
    .join('');
}

/* -------------------------------------------------------------------------------- bars */

const barHeight = 16;

const groupHeight = (group: BarGroup): number => group.bars.length * barHeight + 14 + (group.mark ? 12 : 0);

function groupText(group: BarGroup, frame: Frame, scale: Scale, names: readonly string[]): string {
  const at = (value: number) => round(frame.left + scale.at(value) * frame.width);
  const zero = at(Math.max(0, scale.min));
  const top = frame.top + (group.mark ? 14 : 4);
  const height = group.bars.length * barHeight;
  const parts = [textText(frame.left - 10, top + height / 2 + 4, group.name, 'name end')];
  for (const [index, bar] of group.bars.entries()) {
    const y = top + index * barHeight;
    if (bar.value === null) {
      parts.push(textText(zero + 6, y + 12, 'not measured', 'note'));
      continue;
    }
    const x = at(bar.value);
    const style = names.indexOf(bar.name) % styles.length;
    const [from, to] = x < zero ? [x, zero] : [zero, x];
    parts.push(`<rect class="bar f-s${style}" x="${from}" y="${y + 1}" width="${round(to - from)}" height="13"/>`);
    if (bar.low !== undefined && bar.high !== undefined) {
      parts.push(lineText(at(bar.low), y + 7.5, at(bar.high), y + 7.5, 'axis'));
    }
    parts.push(textText(Math.max(to, at(bar.high ?? bar.value)) + 6, y + 12, numberText(bar.value), 'tick'));
  }
  if (group.mark) {
    const x = at(group.mark.at);
    const end = x > frame.left + frame.width / 2;
    parts.push(lineText(x, top - 3, x, top + height + 3, 'mark'));
    parts.push(textText(x + (end ? 4 : -4), top - 4, group.mark.label, end ? 'note end' : 'note'));
  }
  return `<g>${parts.join('')}</g>`;
}

/* ------------------------------------------------------------------------------- parts */

const page = { width: 1000, edge: 32 } as const;

/** Colours that differ for readers who see fewer of them too (after Okabe and Ito); light ground, dark ground, dash. */
const styles = [
  ['#0060a8', '#5cb8f5', ''],
  ['#c24e00', '#ffa14d', '7 3'],
  ['#007a58', '#3ed6a6', '2 3'],
  ['#a8437f', '#f29fd0', '9 3 2 3'],
  ['#7a5c00', '#e8d040', '12 4'],
  ['#4a4a4a', '#c8c8c8', '4 4'],
  ['#5b3fb0', '#b5a2ff', '1 3'],
  ['#9c1c1c', '#ff8585', '10 3 2 3 2 3'],
] as const;

/** Title, subtitle and legend, each wrapped to the page. */
function headOf(
  chart: { title: string; subtitle?: string },
  names: readonly string[],
  kind: 'line' | 'plain' | 'bar',
): { text: string; height: number } {
  const parts: string[] = [];
  let y = 18;
  for (const [text, size, look] of [
    [chart.title, 18, 'title'],
    [chart.subtitle ?? '', 13, 'subtitle'],
  ] as const) {
    for (const row of wrapped(text, size)) {
      y += size + 6;
      parts.push(textText(page.edge, y - 6, row, look));
    }
  }
  y += 10;
  let x: number = page.edge;
  for (const [index, name] of names.entries()) {
    const width = 40 + textWidth(name, 13) + 20;
    if (x > page.edge && x + width > page.width - page.edge) {
      x = page.edge;
      y += 20;
    }
    parts.push(sampleText(kind, index, x, y + 4), textText(x + 40, y + 8, name, 'name'));
    x += width;
  }
  return { text: `<g>${parts.join('')}</g>`, height: y + 24 };
}

function sampleText(kind: 'line' | 'plain' | 'bar', index: number, x: number, y: number): string {
  const style = `s${index % styles.length}`;
  if (kind === 'bar') return `<rect class="bar f-${style}" x="${x}" y="${y - 6}" width="32" height="13"/>`;
  const line = `<polyline class="line ${style}" points="${x},${y} ${x + 32},${y}"/>`;
  return kind === 'plain' ? line : line + markerText(index, x + 16, y);
}

function markerText(index: number, x: number, y: number): string {
  const look = `class="dot f-s${index % styles.length}"`;
  const at = (dx: number, dy: number) => `${round(x + dx)},${round(y + dy)}`;
  const shapes = [
    `<circle ${look} cx="${round(x)}" cy="${round(y)}" r="4"/>`,
    `<rect ${look} x="${round(x - 3.6)}" y="${round(y - 3.6)}" width="7.2" height="7.2"/>`,
    `<polygon ${look} points="${at(0, -5)} ${at(4.6, 3.6)} ${at(-4.6, 3.6)}"/>`,
    `<polygon ${look} points="${at(0, -5)} ${at(5, 0)} ${at(0, 5)} ${at(-5, 0)}"/>`,
  ];
  return shapes[index % shapes.length] ?? '';
}

function svgText(chart: { title: string; subtitle?: string }, height: number, parts: readonly string[]): string {
  const size = `width="${page.width}" height="${round(height)}" viewBox="0 0 ${page.width} ${round(height)}"`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" ${size} role="img" aria-label="${escaped(chart.title)}">`,
    `<title>${escaped(chart.title)}</title>`,
    `<style>${css}</style>`,
    `<rect class="ground" width="${page.width}" height="${round(height)}"/>`,
    ...parts,
    '</svg>',
    '',
  ].join('\n');
}

const colours = (dark: 0 | 1) => styles.map((s, at) => `.s${at}{stroke:${s[dark]}}.f-s${at}{fill:${s[dark]}}`).join('');

const css = [
  'text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1c1c1c}',
  '.title{font-size:18px;font-weight:600}.panel{font-size:14px;font-weight:600}',
  '.subtitle,.label,.name{font-size:13px}.tick,.note{font-size:12px}.subtitle,.note{fill:#555}',
  '.middle{text-anchor:middle}.end{text-anchor:end}',
  '.ground{fill:#fff}.grid{stroke:#e2e2e2}.axis{stroke:#555}.mark{stroke:#888;stroke-dasharray:5 4}',
  '.line{fill:none;stroke-width:2.2;stroke-linejoin:round}.band{opacity:.16}',
  styles.map((s, at) => (s[2] ? `.s${at}{stroke-dasharray:${s[2]}}` : '')).join(''),
  colours(0),
  '@media (prefers-color-scheme:dark){text{fill:#eee}.subtitle,.note{fill:#b4b4b4}.ground{fill:#16181c}',
  `.grid{stroke:#33363c}.axis{stroke:#aaa}.mark{stroke:#888}${colours(1)}}`,
].join('');

const round = (value: number): number => Math.round(value * 10) / 10;

/** About what it takes in a wide sans-serif face; titles are bold. */
const textWidth = (text: string, size: number): number => text.length * size * (size >= 18 ? 0.62 : 0.57);

function wrapped(text: string, size: number): string[] {
  const rows: string[] = [];
  for (const word of text.split(' ').filter((each) => each !== '')) {
    const longer = rows.length === 0 ? word : `${rows.at(-1)} ${word}`;
    if (rows.length > 0 && textWidth(longer, size) <= page.width - 2 * page.edge) rows[rows.length - 1] = longer;
    else rows.push(word);
  }
  return rows;
}

function lineText(x1: number, y1: number, x2: number, y2: number, look: string): string {
  return `<line class="${look}" x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"/>`;
}

function textText(x: number, y: number, text: string, look: string, transform?: string): string {
  const turned = transform ? ` transform="${transform}"` : '';
  return `<text class="${look.trim()}" x="${round(x)}" y="${round(y)}"${turned}>${escaped(text)}</text>`;
}

const escaped = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;').replaceAll('"', '&quot;');
