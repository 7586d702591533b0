/** Every rule for documents can fail: each gets a document that says too little, too much or something else. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import * as documents from '../support/tidy-documents.ts';
import { repositoryFiles, type SourceFile } from '../support/tidy-source.ts';

const page = (text: string, path = 'docs/a.md'): SourceFile => ({ path, text });

/** One finding for each form, in any order. */
function finds(offences: readonly string[], ...forms: RegExp[]) {
  for (const form of forms)
    assert.ok(
      offences.some((offence) => form.test(offence)),
      `${form} not in\n${offences.join('\n')}`,
    );
  assert.equal(offences.length, forms.length, offences.join('\n'));
}

describe('errors', () => {
  const catalogue = {
    gone: { status: 404, fate: 'caller', title: 'Gone', text: 'It is gone.' },
    torn: { status: null, fate: 'permanent', title: 'Torn', text: 'It is torn.' },
  };
  const table = (...rows: string[]) =>
    page(['| Code | Status | Fate | Title | Text |', '|---|--:|---|---|---|', ...rows].join('\n'));
  const gone = '| `gone` | 404 | caller | Gone | It is gone. |';
  const torn = '| `torn` | – | permanent | Torn | It is torn. |';

  test('an equal table has no offence', () => finds(documents.errorsEqual(catalogue, table(gone, torn))));
  test('a code that the table lacks is caught', () =>
    finds(documents.errorsEqual(catalogue, table(gone)), /lacks: torn/));
  test('a code that the catalogue lacks is caught', () =>
    finds(
      documents.errorsEqual(catalogue, table(gone, torn, torn.replace('torn', 'worn'))),
      /:5 is not in the code: worn/,
    ));
  test('a row given twice is caught', () =>
    finds(documents.errorsEqual(catalogue, table(gone, torn, torn)), /:5 stands there twice/));
  for (const [cell, other] of [
    ['404', '410'],
    ['caller', 'retry'],
    ['It is gone', 'It went'],
    ['| Gone', '| Lost'],
  ] as const) {
    test(`"${other}" in place of "${cell}" is caught`, () =>
      finds(
        documents.errorsEqual(catalogue, table(gone.replace(cell, other), torn)),
        /:3 is not in the code/,
        /lacks: gone/,
      ));
  }
});

describe('states', () => {
  const states = ['queued', 'done'];
  const transitions = [
    { from: null, to: 'queued', by: 'accept' },
    { from: 'queued', to: 'done', by: 'settle' },
  ];
  const text = [
    '# States',
    '## Job',
    '| State | Meaning |',
    '|---|---|',
    '| `queued` | waits |',
    '| `done` | over |',
    '### Moves',
    '| From | To | By |',
    '|---|---|---|',
    '| – | `queued` | accept |',
    '| `queued` | `done` | settle |',
    '## Other',
    '| From | To | By |',
    '|---|---|---|',
    '| `x` | `y` | z |',
  ].join('\n');
  const check = (changed: string) => documents.statesEqual('job', states, transitions, page(changed));

  test('equal tables have no offence, and other headings do not count', () => finds(check(text)));
  test('a state that is not in the code is caught', () =>
    finds(check(text.replace('| `done` | over', '| `lost` | over')), /not in the code: lost/, /lacks: done/));
  test('a transition that the document lacks is caught', () =>
    finds(check(text.replace('| – | `queued` | accept |\n', '')), /lacks: – \| queued \| accept/));
  test('a transition that the code lacks is caught', () =>
    finds(
      check(
        text
          .replace('### Moves', '### Moves')
          .replace('| `queued` | `done` | settle |', '| `done` | `queued` | settle |'),
      ),
      /not in the code/,
      /lacks/,
    ));
  test('two tables with different steps are caught, and the same steps under other names are not', () => {
    const steps = [
      { from: null, to: 'queued' },
      { from: 'queued', to: 'done' },
    ];
    finds(documents.stepsEqual('src/a.ts', steps, transitions));
    finds(documents.stepsEqual('src/a.ts', steps.slice(1), transitions), /not in the code: – \| queued/);
    finds(
      documents.stepsEqual('src/a.ts', [...steps, { from: 'done', to: 'queued' }], transitions),
      /lacks: done \| queued/,
    );
  });
  test('a document without the heading is caught', () => finds(check('# None'), /lacks/, /lacks/, /lacks/, /lacks/));
});

describe('recipes', () => {
  const recipe = {
    version: 2,
    workingEdge: 1000,
    variants: [
      { name: 'small', format: 'jpeg', fit: 'inside', box: { width: 10, height: 20 }, quality: 80, mozjpeg: true },
      { name: 'large', format: 'webp', fit: 'inside', box: { width: 30, height: 30 }, quality: 70, effort: 2 },
    ],
  };
  const text = [
    'The newest version is 2.',
    '## Pipeline version 2',
    'Raw pixels with a long edge of at most 1000 pixels.',
    '| Name | Format | Fit | Box | Quality | Encoder |',
    '|---|---|---|---|---|---|',
    '| `small` | jpeg | inside | 10×20 | 80 | mozjpeg on |',
    '| `large` | webp | inside | 30×30 | 70 | effort 2 |',
  ].join('\n');
  const check = (changed: string) => documents.recipesEqual([recipe], 2, page(changed));

  test('an equal description has no offence', () => finds(check(text)));
  for (const [cell, other] of [
    ['| 80 |', '| 81 |'],
    ['effort 2', 'effort 4'],
    ['10×20', '10×10'],
    ['mozjpeg on', 'mozjpeg off'],
  ] as const) {
    test(`"${other}" in place of "${cell}" is caught`, () =>
      finds(check(text.replace(cell, other)), /not in the code/, /lacks/));
  }
  test('another working edge is caught', () => finds(check(text.replace('1000', '2000')), /lacks the working edge/));
  test('another newest version is caught', () =>
    finds(check(text.replace('is 2.', 'is 1.')), /lacks the newest version/));
});

describe('what a document names', () => {
  const files = [
    page(
      `test('a plain promise', () => {});\nfor (const point of ['a.b']) test(\`SIGKILL at \${point}: it ends\`, () => {});`,
      'tests/x.test.ts',
    ),
    page('', 'src/a/b.ts'),
    page('# Two Words, here\n', 'docs/b.md'),
  ];
  const row = (cell: string) => documents.testsExist(page(`| Step | Test |\n|---|---|\n| 1 | ${cell} |`), files);

  test('a test that exists is found by file and title, also from a list of titles', () => {
    finds(row('`tests/x.test.ts` › a plain promise'));
    finds(row('`tests/x.test.ts` › SIGKILL at a.b: it ends<br>`tests/x.test.ts` › a plain promise'));
  });
  test('a test file that is gone is caught', () =>
    finds(row('`tests/y.test.ts` › a plain promise'), /names no test: tests/));
  test('a title that is gone is caught', () =>
    finds(row('`tests/x.test.ts` › another promise'), /has no test "another promise"/));
  test('a title that only fits the form of one is caught', () =>
    finds(row('`tests/x.test.ts` › SIGKILL at c.d: it ends'), /has no test/));
  test('a test is found below its block, and not below another', () => {
    const nested = page(
      "describe('one', () => { it('says', () => {}); });\ndescribe('two', () => { it('does', () => {}); });",
      'tests/b.test.ts',
    );
    const cell = (title: string) =>
      documents.testsExist(page(`| Test |\n|---|\n| tests/b.test.ts › ${title} |`), [nested]);
    finds([...cell('one › says'), ...cell('says'), ...cell('two › does')]);
    finds(cell('two › says'), /has no test "two › says"/);
  });
  test('a title made of pieces that do not belong together is caught', () => {
    const table = page(
      `for (const { point, what } of [{ point: 'a', what: 'x y' }, { point: 'b', what: 'z' }]) test(\`at \${point}: \${what}\`, () => {});`,
      'tests/z.test.ts',
    );
    const cell = (title: string) =>
      documents.testsExist(page(`| Test |\n|---|\n| tests/z.test.ts › ${title} |`), [table]);
    finds(cell('at a: x y'));
    finds(cell('at b: x y'), /has no test/);
  });
  test('a title made of numbers is found when they stand together', () => {
    const table = page(
      `for (const [wide, high] of [[1, 1_000], [20, 30]]) test(\`a picture of \${wide} × \${high}\`, () => {});`,
      'tests/n.test.ts',
    );
    const cell = (title: string) =>
      documents.testsExist(page(`| Test |\n|---|\n| tests/n.test.ts › ${title} |`), [table]);
    finds(cell('a picture of 1 × 1000'));
    finds(cell('a picture of 1 × 30'), /has no test/);
  });
  test('a row without a test is caught', () => finds(row(''), /an empty cell/));
  test('a document without any row is caught', () =>
    finds(documents.testsExist(page('# Nothing'), files), /no row with a test/));

  describe('cases', () => {
    const rows = '| Case | Test |\n|--:|---|\n| 1 | a |\n| 2 | b |\n\n- **3**, which comes later.\n';
    const check = (text: string) => documents.casesComplete(page(text));
    test('every number from 1 on, in a table or the list, is no offence', () => finds(check(rows)));
    test('a case that is gone is caught', () => finds(check(rows.replace('| 2 | b |\n', '')), /:1 lacks: 2/));
    test('a case that stands there twice is caught', () =>
      finds(check(`${rows}- **1**, again`), /:7 stands there twice: 1/));
    test('what is no number is caught', () => finds(check(rows.replace('| 2 |', '| two |')), /two/, /lacks: 2/));
    test('a document without cases is caught', () => finds(check('# Cases'), /no case/));
  });

  test('a path that does not exist is caught, in words and in links', () =>
    finds(
      documents.pathsExist(
        page('See `src/a/c.ts`,\n[there](../src/a/d.ts), [here](c.md#x) and tests/*.spec.ts, c.json.'),
        files,
      ),
      /:1 names src\/a\/c\.ts/,
      /:2 names src\/a\/d\.ts/,
      /:2 names docs\/c\.md/,
      /:2 names tests\/\*\.spec\.ts/,
      /:2 names c\.json/,
    ));
  test('a path in a comment of the code that does not exist is caught', () =>
    finds(
      documents.commentPathsExist([
        ...files,
        page("/**\n * See `docs/b.md`, `tests/` and `docs/none.md`.\n */\nf('`docs/code.md`');", 'src/c.ts'),
      ]),
      /src\/c\.ts:2 names docs\/none\.md/,
    ));
  test('paths that exist, folders, patterns and addresses are no offence', () =>
    finds(
      documents.pathsExist(
        page(
          '`src/a/b.ts`, src/a/, tests/*.test.ts. [b](b.md), [b](../docs/b.md#two-words-here), b.md, https://example.org/src/x.md',
        ),
        files,
      ),
    ));

  test('a link to a heading that is gone is caught', () =>
    finds(
      documents.linksLead(page('[a](b.md#two-words-here)\n[a](b.md#three)\n[c](#none)'), [
        ...files,
        page('', 'docs/a.md'),
      ]),
      /:2 links to #three/,
      /:3 links to #none/,
    ));

  test('a translation that tells another command, or one more, is caught', () => {
    const walk = (...lines: string[]) => page(['```bash', ...lines, '```'].join('\n'));
    const original = walk('# One.', 'a', '', 'b');
    finds(documents.walksEqual(original, walk('# Eins.', 'a', '', '# Zwei.', 'b')));
    finds(documents.walksEqual(original, walk('a', 'c')), /from "b" on/);
    finds(documents.walksEqual(original, walk('a', 'b', 'c')), /from "its end" on/);
    finds(documents.walksEqual(original, page('')), /from "a" on/);
  });

  test('a decision that the index lacks, or calls something else, is caught', () =>
    finds(
      documents.decisionsListed(
        page('| Page | Decides |\n|---|---|\n| [1](0001-a.md) | Houses |\n| [2](0002-b.md) | Mice |'),
        [
          page('# 1. Houses', 'docs/decisions/0001-a.md'),
          page('# 2. Men', 'docs/decisions/0002-b.md'),
          page('# 3. Late', 'docs/decisions/0003-c.md'),
        ],
      ),
      /:4 is not in the code: 0002-b\.md \| Mice/,
      /lacks: 0002-b\.md \| Men/,
      /lacks: 0003-c\.md \| Late/,
    ));

  test('a metric that only the code or only the document knows is caught', () =>
    finds(
      documents.metricsEqual(
        page('| Metric | Kind |\n|---|---|\n| `skrepka_b_total` | counter |\n| `skrepka_d_total` | counter |'),
        [
          page(
            "deps.meter.count('a_total');\nmeter.observe('b_total', 1);\nlist.count('x');\nconst queueGauges = { c: 'C.' };",
            'src/a.ts',
          ),
        ],
      ),
      /lacks: skrepka_a_total/,
      /lacks: skrepka_c/,
      /:4 is not in the code: skrepka_d_total/,
    ));
});

describe('the rules themselves', () => {
  test('every rule for documents has an example here', () => {
    const self = repositoryFiles().find(({ path }) => path === 'tests/tidy/tidy-documents.test.ts');
    for (const name of Object.keys(documents).filter((name) => /(?:Equal|Exist|Lead|Listed)$/.test(name))) {
      assert.match(self?.text ?? '', new RegExp(`documents\\.${name}\\b`), `${name} has no bad example`);
    }
  });
});
