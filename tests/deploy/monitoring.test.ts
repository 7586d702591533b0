/**
 * Metrics, alarms and dashboard belong together: what the rules and the panels ask for is told by some process, what a process
 * tells is explained, and every alarm says what to do. Whether the rules can be read by Prometheus is `promtool`'s to say.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { parse } from 'yaml';
import { roles } from '../../src/roles.ts';
import { table } from '../../src/settings.ts';
import { type Metric, metrics, prefix } from '../../src/telemetry-metrics.ts';
import { readText } from '../support/compose-files.ts';

interface Alarm {
  readonly alert: string;
  readonly expr: string;
  readonly for?: string;
  readonly labels?: Readonly<Record<string, string>>;
  readonly annotations?: Readonly<Record<string, string>>;
}
interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly description?: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly datasource?: { readonly uid: string };
  readonly fieldConfig?: { readonly defaults: { readonly unit?: string } };
  readonly targets?: readonly { readonly expr: string; readonly datasource: { readonly uid: string } }[];
}

const rulesText = readText('deploy/prometheus/rules.yml');
const alarms = (parse(rulesText) as { groups: { rules: Alarm[] }[] }).groups.flatMap((group) => group.rules);
const scrapes = parse(readText('deploy/prometheus/prometheus.yml')) as {
  scrape_configs: { job_name: string; dns_sd_configs: { names: string[]; port: number }[] }[];
};
const dashboard = JSON.parse(readText('deploy/grafana/skrepka.json')) as {
  panels: Panel[];
  templating: { list: { name: string; type: string; query: string }[] };
};
const document = readText('docs/operations.md');
const panels = dashboard.panels.filter(({ type }) => type !== 'row');
const asked = [
  ...alarms.map(({ expr }) => expr),
  ...panels.flatMap((one) => one.targets ?? []).map(({ expr }) => expr),
];

/** Rows of the table whose head has this word, as cells. */
function tableOf(head: string): string[][] {
  const lines = document.split('\n');
  const start = lines.findIndex((line) => line.startsWith(`| ${head} |`));
  const rows = lines.slice(start + 2);
  const end = rows.findIndex((line) => !line.startsWith('|'));
  return rows.slice(0, end).map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
}

/** A metric of ours in an expression, by the name of one of its series. */
function metricOf(series: string): Metric | undefined {
  const name = series.slice(prefix.length);
  const known = metrics[name];
  if (known && known.kind !== 'histogram') return known;
  const histogram = metrics[name.replace(/_(bucket|sum|count)$/, '')];
  return histogram?.kind === 'histogram' && histogram !== known ? histogram : undefined;
}

/** `name{label="value",…}` in an expression; the braces may be missing. */
function selectorsOf(expr: string) {
  return [...expr.matchAll(/\b(skrepka_\w+)(?:\{([^}]*)\})?/g)].map(([, series = '', inside = '']) => ({
    series,
    labels: [...inside.matchAll(/(\w+)(=~|=|!=|!~)"([^"]*)"/g)].map(([, name = '', , value = '']) => ({ name, value })),
  }));
}

describe('what the rules and the dashboard ask for', () => {
  test('is in the catalogue, with labels and values that it has', () => {
    for (const expr of asked) {
      for (const { series, labels } of selectorsOf(expr)) {
        const metric = metricOf(series);
        assert.ok(metric, `nothing tells ${series} in ${expr}`);
        for (const { name, value } of labels) {
          assert.ok(name in metric.labels, `${series} has no label ${name}`);
          const values = metric.labels[name];
          for (const one of value.split('|')) assert.ok(!values || values.includes(one), `${name} is never ${one}`);
        }
      }
    }
  });

  test('is grouped by labels that its metrics or targets have', () => {
    for (const expr of asked) {
      const own = selectorsOf(expr).flatMap(({ series }) => Object.keys(metricOf(series)?.labels ?? {}));
      for (const [, list = ''] of expr.matchAll(/\bby \(([^)]*)\)/g)) {
        for (const label of list.split(',').map((one) => one.trim())) {
          assert.ok([...own, 'le', 'job', 'instance'].includes(label), `by (${label}) in ${expr}`);
        }
      }
    }
  });

  test('names the jobs that are scraped, each with its role and its port', () => {
    const scraped = scrapes.scrape_configs.map(({ job_name, dns_sd_configs: [one] }) => {
      assert.equal(one?.port, job_name === 'skrepka-api' ? 8080 : 9464);
      assert.equal(`skrepka-${one?.names[0]}`, job_name);
      return job_name;
    });
    assert.deepEqual(scraped.sort(), roles.map((role) => `skrepka-${role}`).sort());
    for (const expr of asked) {
      for (const [, operator, value = ''] of expr.matchAll(/\bjob(=~|=)"([^"]*)"/g)) {
        const wanted =
          operator === '=' ? (job: string) => job === value : (job: string) => RegExp(`^${value}$`).test(job);
        assert.ok(scraped.some(wanted), `no job ${value}`);
      }
    }
  });

  test('leaves no metric unseen', () => {
    const seen = new Set(asked.flatMap(selectorsOf).map(({ series }) => metricOf(series)));
    for (const [name, metric] of Object.entries(metrics)) assert.ok(seen.has(metric), `nobody looks at ${name}`);
  });
});

describe('the scrape of npm start', () => {
  test('asks its two processes on their ports, under names that the rules know, with the same rules and pace', () => {
    const whole = parse(readText('deploy/prometheus/prometheus.yml')) as Record<string, unknown>;
    const single = parse(readText('deploy/prometheus/npm-start.yml')) as Record<string, unknown> & {
      scrape_configs: { job_name: string; static_configs: { targets: string[] }[] }[];
    };
    assert.deepEqual([single.global, single.rule_files], [whole.global, whole.rule_files]);
    const asks = single.scrape_configs.map((one) => [
      one.job_name,
      one.static_configs.flatMap(({ targets }) => targets),
    ]);
    assert.deepEqual(asks, [
      ['skrepka-api', [`127.0.0.1:${table.port.fallback}`]],
      ['skrepka-worker', ['127.0.0.1:9464']],
    ]);
    assert.ok(document.includes('METRICS_PORT=9464 npm start'));
  });
});

describe('an alarm', () => {
  test('says how bad it is, for how long it waits, what it means, what to do, and above it why', () => {
    for (const alarm of alarms) {
      assert.match(alarm.alert, /^Skrepka[A-Z]\w+$/);
      assert.match(alarm.labels?.severity ?? '', /^(critical|warning)$/, alarm.alert);
      assert.match(alarm.for ?? '', /^\d+[smh]$/, alarm.alert);
      for (const text of ['summary', 'action'] as const) {
        assert.ok((alarm.annotations?.[text]?.length ?? 0) > 20, `${alarm.alert} has no ${text}`);
      }
    }
    assert.equal(new Set(alarms.map(({ alert }) => alert)).size, alarms.length);
  });

  test('is explained in docs/operations.md, and none else', () => {
    const explained = tableOf('Alarm').map(([name = '', ...cells]) => {
      for (const cell of cells) assert.ok(cell.length > 3, name);
      return name.replaceAll('`', '');
    });
    assert.deepEqual(explained.sort(), alarms.map(({ alert }) => alert).sort());
  });

  test('writes no label into its words that its expression does not leave', () => {
    for (const { alert, expr, annotations = {} } of alarms) {
      const left = [...expr.matchAll(/\bby \(([^)]*)\)/g)].flatMap(([, list = '']) => list.split(/,\s*/));
      const whole = /^(up|changes)\b/.test(expr) ? ['job', 'instance'] : left;
      for (const [, label = ''] of Object.values(annotations)
        .join(' ')
        .matchAll(/\$labels\.(\w+)/g)) {
        assert.ok(whole.includes(label), `${alert} has no ${label}`);
      }
    }
  });
});

describe('the dashboard', () => {
  test('has its six rows in the order in which one looks', () => {
    const rows = dashboard.panels.filter(({ type }) => type === 'row').map(({ title }) => title);
    assert.deepEqual(rows, ['Is it well?', 'Queue', 'Work', 'Storage', 'Broker', 'Processes']);
  });

  test('asks for its Prometheus, and reads everything from the one that was chosen', () => {
    const [variable] = dashboard.templating.list;
    assert.deepEqual([variable?.name, variable?.type, variable?.query], ['datasource', 'datasource', 'prometheus']);
    const sources = panels.flatMap(({ datasource, targets = [] }) => [
      datasource,
      ...targets.map((one) => one.datasource),
    ]);
    for (const source of sources) assert.equal(source?.uid, '$'.concat('{datasource}'));
  });

  test('explains each panel, gives it a unit, and lays none over another', () => {
    const taken = new Set<string>();
    const ids = new Set(dashboard.panels.map(({ id }) => id));
    assert.equal(ids.size, dashboard.panels.length);
    assert.equal(new Set(panels.map(({ title }) => title)).size, panels.length);
    for (const panel of dashboard.panels) {
      const { x, y, w, h } = panel.gridPos;
      assert.ok(x + w <= 24, panel.title);
      for (let column = x; column < x + w; column += 1) {
        for (let line = y; line < y + h; line += 1) {
          assert.ok(!taken.has(`${column},${line}`), `${panel.title} lies over another`);
          taken.add(`${column},${line}`);
        }
      }
      if (panel.type === 'row') continue;
      assert.ok((panel.description?.length ?? 0) > 15 && panel.fieldConfig?.defaults.unit, panel.title);
    }
  });
});

describe('docs/operations.md', () => {
  test('has the kind, labels, values and roles of every metric', () => {
    const written = tableOf('Metric').map(([name = '', kind, labels, role]) => [
      name.replaceAll('`', ''),
      kind,
      labels,
      role,
    ]);
    const real = Object.entries(metrics).map(([name, metric]) => [
      prefix + name,
      metric.kind,
      Object.entries(metric.labels).map(wordsOf).join('; '),
      metric.roles === 'all' ? 'all' : metric.roles.join(', '),
    ]);
    assert.deepEqual(written, real);
  });
});

function wordsOf([label, values]: [string, readonly string[] | null]): string {
  if (values === null) return `\`${label}\``;
  return `\`${label}\`: ${label === 'code' && values.length > 5 ? 'a code that jobs fail with' : values.join(', ')}`;
}
