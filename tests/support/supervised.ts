/** `skrepka start` in a folder of its own, and questions to what it runs. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { onEnd, type Scope } from './on-end.ts';
import { commandOf, type Started, startCommand } from './started.ts';

export async function prepare(t: Scope) {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-start-'));
  onEnd(t, () => rm(folder, { recursive: true, force: true }));
  const dataDir = path.join(folder, 'data');
  const start = (settings: Record<string, string> = {}) =>
    startCommand(t, ['start'], { DATA_DIR: dataDir, PORT: '0', ...settings });
  return { folder, dataDir, start };
}

export async function post(url: string, body: object): Promise<{ status: number; body: Record<string, unknown> }> {
  const headers = { 'content-type': 'application/json' };
  const answer = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: answer.status, body: (await answer.json()) as Record<string, unknown> };
}

/** An upload of a text. */
export async function sendText(url: string, token: unknown, body: string): Promise<Response> {
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'text/plain' };
  return await fetch(`${url}/v1/attachments?filename=a.txt`, { method: 'POST', headers, body });
}

export const isReady = async (url: string) =>
  await fetch(`${url}/health/ready`).then(
    (answer) => answer.status === 200,
    () => false,
  );

export function linesOf(started: Started): { service: string; text: string; reason?: string }[] {
  const lines = started.stdout().split('\n');
  return lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
}

export function childWith(started: Started, words: string): number | undefined {
  return started.family().find((pid) => commandOf(pid).includes(`main.ts ${words}`));
}
