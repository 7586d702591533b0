/** File names that broke other systems. Each comes back exactly as it was sent. */
export const hardNames: readonly string[] = [
  'cat.jpg',
  'two  spaces.jpg',
  '日本-é-😀.jpg'.normalize('NFC'),
  '日本-é-😀.jpg'.normalize('NFD'),
  'quote".jpg',
  "apostrophe'.jpg",
  'back\\slash.jpg',
  'percent%41.jpg',
  'zero\u200bwidth.jpg',
  'שלום.jpg',
  'right\u202eto left.jpg',
  'semi;colon=.jpg',
  'no extension',
  '.hidden',
  'family 👨‍👩‍👧.png',
  'ÿ latin one.jpg',
];
