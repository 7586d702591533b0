/**
 * `npm run contract`: writes what is generated from code. `--check`: fails, naming them, when files are stale.
 *
 * `contracts/openapi.json` from the schemas of the routes, `docs/configuration.md` and `.env.example` from the settings.
 */
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { loadConfig } from '../src/config.ts';
import type { HttpDeps } from '../src/http/app.ts';
import { openApiDocument } from '../src/http/docs.ts';
import { createServer } from '../src/http/server.ts';
import type { Setting } from '../src/setting.ts';
import { table } from '../src/settings.ts';
import { composeExample } from './compose-settings.ts';

const root = path.resolve(import.meta.dirname, '..');

/** Each generated file with the text that it should hold. */
export async function generated(): Promise<ReadonlyMap<string, string>> {
  return new Map([
    ['contracts/openapi.json', `${JSON.stringify(await openApi(), null, 2)}\n`],
    ['docs/configuration.md', configurationPage()],
    ['.env.example', exampleEnvironment()],
  ]);
}

/** The document of a server whose parts are never called. */
async function openApi(): Promise<Record<string, unknown>> {
  const part = { listen: () => () => undefined } as unknown;
  const parts = new Proxy({}, { get: () => part }) as HttpDeps;
  const server = await createServer(parts, loadConfig({}));
  try {
    return openApiDocument(server.app);
  } finally {
    await server.close();
  }
}

const groups = (): Map<string, Setting[]> => Map.groupBy<string, Setting>(Object.values(table), ({ group }) => group);

function configurationPage(): string {
  const sections = [...groups()].map(([group, settings]) => {
    const rows = settings.map(
      (s) => `| \`${s.env}\` | ${s.fallback === '' ? '' : `\`${s.fallback}\``} | ${s.text}${bounds(s)} |`,
    );
    return `## ${group}\n\n| variable | default | meaning |\n|---|---|---|\n${rows.join('\n')}\n`;
  });
  return `# Configuration

Everything is set by environment variables; none is needed. This page is generated from \`src/settings.ts\` by
\`npm run contract\`. Sizes are written \`25MiB\`, \`512KiB\` or in bytes; durations \`250ms\`, \`30s\`, \`5m\`, \`24h\`, \`7d\`.
A value that cannot be read, or a pair that contradicts each other, ends the process at start with one sentence each.

${sections.join('\n')}`;
}

function bounds({ kind, choices, min, max }: Setting): string {
  if (choices) return ` One of ${choices.map((choice) => `\`${choice}\``).join(', ')}.`;
  if (min === undefined || max === undefined) return '';
  return ` From ${amount(kind, min)} to ${amount(kind, max)}.`;
}

const units = {
  bytes: [
    [1024 ** 3, 'GiB'],
    [1024 ** 2, 'MiB'],
    [1024, 'KiB'],
    [1, ' bytes'],
  ],
  duration: [
    [86_400_000, 'd'],
    [3_600_000, 'h'],
    [60_000, 'm'],
    [1000, 's'],
    [1, 'ms'],
  ],
} as const;

/** A number as one would write it in the environment: in the largest unit that divides it. */
function amount(kind: Setting['kind'], value: number): string {
  if (kind !== 'bytes' && kind !== 'duration') return String(value);
  const [size, name] = units[kind].find(([size]) => value > 0 && value % size === 0) ?? [1, ''];
  return `${value / size}${name}`;
}

function exampleEnvironment(): string {
  const sections = [...groups()].map(([group, settings]) => {
    const lines = settings.map((s) => `# ${s.text.replaceAll('`', '')}\n#${s.env}=${s.fallback}\n`);
    return `# ---- ${group}\n\n${lines.join('\n')}`;
  });
  return `# Every setting with its default. Uncomment what you change; docs/configuration.md has the bounds.\n\n${sections.join('\n')}\n${composeExample()}`;
}

async function main(): Promise<void> {
  const check = process.argv.includes('--check');
  const stale: string[] = [];
  for (const [file, text] of await generated()) {
    const present = await readFile(path.join(root, file), 'utf8').catch(() => null);
    if (present === text) continue;
    if (check) stale.push(file);
    else {
      await writeFile(path.join(root, file), text);
      console.log(`wrote ${file}`);
    }
  }
  if (stale.length === 0) return;
  console.error(`Stale: ${stale.join(', ')}. Run \`npm run contract\` and look at what changed.`);
  process.exitCode = 1;
}

if (import.meta.main) await main();
