/**
 * The house style, enforced: each test is one rule, and fails with the list of what breaks it. Nothing is exempt by name.
 *
 * The rules are functions in `tests/support/tidy-*.ts`; `tests/tidy/` feeds each of them a bad example and expects it to
 * be caught.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { promisify } from 'node:util';
import { catalogue } from '../src/errors.ts';
import { attachmentStates, attachmentTransitions } from '../src/pipeline/attachment.ts';
import { jobStates, jobTransitions } from '../src/pipeline/job.ts';
import { newestVersion, recipes } from '../src/pipeline/recipe.ts';
import { jobReasons } from '../src/postgres/history.ts';
import {
  casesComplete,
  commentPathsExist,
  decisionsListed,
  errorsEqual,
  linksLead,
  metricsEqual,
  pathsExist,
  recipesEqual,
  statesEqual,
  stepsEqual,
  testsExist,
  walksEqual,
} from './support/tidy-documents.ts';
import {
  lockWithoutServers,
  noMachinePath,
  noRegistryHost,
  noSleeping,
  noTestLeftOut,
  nothingUnused,
  testsAreFound,
  titlesPromise,
} from './support/tidy-repository.ts';
import {
  decoderInChildrenOnly,
  dependencyRule,
  environmentInConfigOnly,
  erasableSyntax,
  fileLinesMax,
  functionLinesMax,
  headers,
  nothingLeftToDo,
  oneFileEachPackage,
  pipelineThroughPorts,
  reachable,
  sayingNames,
  shortFiles,
  shortFunctions,
  stepHeaders,
} from './support/tidy-rules.ts';
import { modulesIn, type Offence, repositoryFiles, root, type SourceFile } from './support/tidy-source.ts';

const files = repositoryFiles();

function none(offences: readonly Offence[]) {
  assert.equal(offences.length, 0, `\n  ${offences.join('\n  ')}\n`);
}

function document(path: string): SourceFile {
  const file = files.find((candidate) => candidate.path === path);
  assert.ok(file, `${path} is missing`);
  return file;
}

/** The documents that are written by hand. */
const documents = files.filter(({ path }) => path.endsWith('.md') && !path.startsWith('src/'));

describe('code', () => {
  test('http and cli know the pipeline, the pipeline knows nobody, and only wiring.ts sees everything', () =>
    none(dependencyRule(files)));
  test('the pipeline has clock, chance, files and network from its ports alone', () =>
    none(pipelineThroughPorts(files)));
  test('every package is imported by one file of src', () => none(oneFileEachPackage(files)));
  test('only src/config.ts reads the environment', () => none(environmentInConfigOnly(files)));
  test(`no file is longer than ${fileLinesMax} lines`, () => none(shortFiles(files)));
  test(`no function is longer than ${functionLinesMax} lines`, () => none(shortFunctions(files)));
  test('no file, folder or export has a name that says nothing', () => none(sayingNames(files)));
  test('every file opens with a comment that says what it holds', () => none(headers(files)));
  test('each of the six step files says where it stands, what is durable, what a death leaves and who repairs it', () =>
    none(stepHeaders(files)));
  test('nothing is left to do by a comment', () => none(nothingLeftToDo(files)));
  test('there is no enum, no decorator and no class but of errors', () => none(erasableSyntax(files)));
  test('no role loads the decoder: only the children that render do', () => none(decoderInChildrenOnly(files)));
  test('every module of src is reached from src/main.ts', () => none(reachable(files)));
});

describe('states', () => {
  const reasons = Object.values(jobReasons).flatMap(({ from, to }) => from.map((state) => ({ from: state, to })));

  test('the transitions of a job are those that the store writes into its history', () =>
    none(stepsEqual('src/pipeline/job.ts', reasons, jobTransitions)));

  test('the transitions of an attachment are those of the job of its first version', () => {
    const shown: Readonly<Record<string, string>> = { ...statesAlike, succeeded: 'ready' };
    // A rebuild is the one thing that leads a job away from succeeded, and its attachment stays ready throughout.
    const others = reasons.filter(({ from }) => from !== jobReasons.rebuilding.from[0]);
    const steps = others.flatMap(({ from, to }) => {
      const step = { from: shown[from ?? ''], to: shown[to] };
      return step.from && step.to && step.from !== step.to ? [{ from: step.from, to: step.to }] : [];
    });
    none(stepsEqual('src/pipeline/attachment.ts', steps, attachmentTransitions));
  });
});

/** What an attachment shows of its job: superseded and cancelled jobs show nothing. */
const statesAlike = { queued: 'queued', processing: 'processing', failed: 'failed' };

describe('tests', () => {
  test('no test is skipped, singled out or put off', () => none(noTestLeftOut(files)));
  test('no test sleeps in place of a condition', () => none(noSleeping(files)));
  test('every title is a promise, given once', () => none(titlesPromise(files)));
  test('every file with tests is one that the runner finds', () => none(testsAreFound(files)));
});

describe('documents', () => {
  test('docs/errors.md is the catalogue of src/errors.ts', () =>
    none(errorsEqual(catalogue, document('docs/errors.md'))));

  for (const path of ['docs/states.md', 'contracts/attachment-states.md']) {
    test(`${path} has the states and transitions of an attachment as they are in the code`, () =>
      none(statesEqual('attachment', attachmentStates, attachmentTransitions, document(path))));
  }
  test('docs/states.md has the states and transitions of a job as they are in the code', () =>
    none(statesEqual('job', jobStates, jobTransitions, document('docs/states.md'))));

  test('contracts/attachment-states.md has the variants, sizes and qualities of every recipe', () =>
    none(recipesEqual(recipes.values(), newestVersion, document('contracts/attachment-states.md'))));

  for (const path of ['docs/failures.md', 'docs/cases.md']) {
    test(`every row of ${path} names a test that exists`, () => none(testsExist(document(path), files)));
  }
  test('docs/cases.md has every case, in order, or says that it is not there yet', () =>
    none(casesComplete(document('docs/cases.md'))));

  test('docs/operations.md lists the metrics that the pipeline reports', () =>
    none(metricsEqual(document('docs/operations.md'), modulesIn(files, 'src/'))));

  test('docs/decisions/README.md lists every decision', () =>
    none(decisionsListed(document('docs/decisions/README.md'), files)));

  test('README.ru.md has the commands of README.md to paste', () =>
    none(walksEqual(document('README.md'), document('README.ru.md'))));

  test('every path that a document names exists', () => none(documents.flatMap((file) => pathsExist(file, files))));
  test('every path that a comment of the code names exists', () => none(commentPathsExist(files)));
  test('every link to a heading finds it', () => none(documents.flatMap((file) => linksLead(file, files))));
});

describe('generated files', () => {
  const generators = {
    'scripts/contract.ts': 'contracts/openapi.json, docs/configuration.md and .env.example are what the code says',
    'scripts/schema.ts': 'src/postgres/schema.sql is what the migrations make',
  };
  for (const [script, promise] of Object.entries(generators)) {
    test(promise, async () => {
      assert.ok(existsSync(join(root, script)), `${script} is missing`);
      const check = promisify(execFile)(process.execPath, [script, '--check'], { cwd: root, timeout: 120_000 });
      await check.catch((error: { stdout?: string; stderr?: string }) => {
        assert.fail(`node ${script} --check:\n${error.stdout ?? ''}${error.stderr ?? ''}`);
      });
    });
  }
});

describe('what a clone holds', () => {
  test('every script and every part of the tests is used', () => none(nothingUnused(files)));
  test('no file names a folder of the machine it was written on', () => none(noMachinePath(files)));
  test('no file names the server of a package registry', () => none(noRegistryHost(files)));
  test('package-lock.json has no resolved URL', () => none(lockWithoutServers(files)));
});
