'use strict';
// Names in what is shown come from peers: they are only ever set as text, and the page's policy allows no other script.
const EVERY_MS = 3000, PATIENCE_MS = 10000, ROWS = 200;
const by = id => document.getElementById(id);
const numbers = new Intl.NumberFormat('en');
const count = value => value === undefined ? '' : numbers.format(value);
const named = one => one.namespace ? `${one.namespace}/${one.name}` : one.name || one.uid;

function bytes(value) {
  if (value === undefined) return '';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  for (; value >= 999.5 && unit < units.length - 1; unit++) value /= 1000;
  return `${unit && value < 9.95 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function span(seconds) {
  if (seconds === undefined) return '';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const at = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[at], whole = Math.floor(seconds / size);
  const [small, rest] = parts[at + 1] || [];
  const left = small ? Math.floor((seconds - whole * size) / small) : 0;
  return left ? `${whole} ${unit} ${left} ${rest}` : `${whole} ${unit}`;
}

const moment = text => (text || '').replace('T', ' ').replace(/(\.\d+)?Z$/, ' UTC');

function party(one = {}, alone = []) {
  // As principals of policies are written.
  const identity = one.identity && one.identity.replace(/^spiffe:\/\//, '');
  const text = one.workload ? `${one.namespace}/${one.workload}` : one.address || identity || 'unknown';
  return {text, sub: [one.workload && one.address, identity, ...alone].filter(Boolean).join('\n')};
}

// One cell, rebuilt only where it changed: what is selected or has the focus stays.
const written = new WeakMap();
function put(cell, value) {
  const {text, sub, tone, href} = typeof value === 'object' ? value : {text: value};
  const key = JSON.stringify([text, sub, tone, href]);
  if (written.get(cell) === key) return;
  written.set(cell, key);
  const main = document.createElement(href ? 'a' : 'span');
  if (href) main.href = href;
  if (tone) main.className = tone;
  main.textContent = text;
  const parts = (sub || '').split('\n').filter(Boolean).map(line => {
    const small = document.createElement('small');
    small.textContent = line;
    return small;
  });
  cell.replaceChildren(main, ...parts);
  cell.classList.toggle('empty', !cell.textContent);
}

function table(view, [one, many], rows, total = rows.length, least = false) {
  const part = by(view), own = part.querySelector('table'), body = own.tBodies[0];
  const heads = [...own.tHead.rows[0].cells];
  const shown = rows.slice(0, ROWS);
  while (body.rows.length > shown.length) body.deleteRow(-1);
  shown.forEach((row, at) => {
    const line = body.rows[at] || body.insertRow();
    line.setAttribute('role', 'row');
    row.forEach((value, column) => {
      let cell = line.cells[column];
      if (!cell) {
        cell = line.appendChild(document.createElement(column ? 'td' : 'th'));
        if (!column) cell.scope = 'row';
        cell.setAttribute('role', column ? 'cell' : 'rowheader');
        cell.className = heads[column].className;
        cell.dataset.label = heads[column].textContent.trim();
      }
      put(cell, value);
    });
  });
  own.parentElement.hidden = !shown.length;
  const more = shown.length < total || least;
  part.querySelector('.count').textContent = !shown.length ? `No ${many}.`
    : !more ? `${count(total)} ${total === 1 ? one : many}.`
    : `The first ${count(shown.length)} of ${least ? 'more' : count(total)} ${many}` +
      (part.querySelector('form') ? ': a narrower filter shows others.' : '.');
}

function list(into, values) {
  while (into.children.length > values.length) into.lastChild.remove();
  values.forEach((value, at) => put(into.children[at] || into.appendChild(document.createElement('li')), value));
}

async function ask(path, signal, method = 'GET') {
  const bound = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]);
  const where = `/${path.split('?')[0]}`;
  let answer, text;
  try {
    answer = await fetch(path, {method, cache: 'no-store', signal: bound});
    text = await answer.text();
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Error(`${where}: no answer from the proxy (${error.message}).`);
  }
  if (!answer.ok) throw new Error(`${where} answered ${answer.status}: ${text.trim().split('\n')[0]}`);
  return text;
}
const get = async (path, signal) => JSON.parse(await ask(path, signal));

const TONES = {Up: 'good', Available: 'good', allowed: 'good', Pending: 'warn', Draining: 'warn', Initializing: 'warn',
  Expired: 'bad', Unavailable: 'bad', denied: 'bad', failed: 'bad'};
const toned = text => ({text, tone: TONES[text]});

// Renewal begins about half way through: with a quarter left it has been failing for long.
function expiresSoon(one) {
  const whole = (Date.parse(one.expirationTime) - Date.parse(one.validFrom)) / 1000;
  return one.state === 'Available' && one.remainingSeconds < whole / 4;
}

function partial(answer) {
  const {asked, answering} = answer.shards || {};
  if (answering < asked) throw new Error(`Only ${answering} of ${asked} shards answered: the list isn't whole.`);
}

let last = {};
// The share of a CPU since the last look; nothing at the first.
function load(items) {
  const now = performance.now(), before = last;
  last = {now, busy: new Map(items.map(one => [one.shard, one.busyNanoseconds]))};
  return one => {
    const was = before.busy && before.busy.get(one.shard);
    if (was === undefined || one.busyNanoseconds === undefined) return '';
    return `${Math.round(Math.max(0, (one.busyNanoseconds - was) / 1e4 / (now - before.now)))} %`;
  };
}

const sum = (items, read) => items.reduce((all, one) => all + (read(one) || 0), 0);

function badge(text, tone) {
  const state = by('state');
  state.hidden = false;
  state.className = tone;
  if (state.textContent !== text) state.textContent = text;
}

function head(status) {
  badge(status.ready ? 'Ready' : 'Not ready', status.ready ? 'good' : 'bad');
  by('build').textContent = `version ${status.version}`;
}

function overview(status, shards, pods, certificates) {
  const states = {};
  for (const pod of pods.items) states[pod.state] = (states[pod.state] || 0) + 1;
  const soon = certificates.items.filter(expiresSoon);
  const wrong = certificates.items.filter(one => one.state === 'Expired' || one.state === 'Unavailable');
  const first = Math.min(...certificates.items.map(one => one.remainingSeconds ?? Infinity));
  const {asked, answering} = shards.shards;
  const cards = [
    ['Readiness', {text: status.ready ? 'ready' : 'not ready', tone: status.ready ? 'good' : 'bad',
      sub: status.ready ? 'waits for nothing' : `waits for ${status.pending.length}`}],
    ['Up for', {text: span(Math.max(1, status.uptimeSeconds))}],
    ['Event loop', {text: status.eventLoop, sub: status.eventLoopCause, tone: status.eventLoopCause ? 'warn' : ''}],
    ['Shards', {text: `${answering} of ${asked}`, sub: 'answer', tone: answering < asked ? 'bad' : ''}],
    ['Pods', {text: count(pods.items.length),
      sub: Object.entries(states).map(([state, many]) => `${count(many)} ${state}`).join(', ')}],
    ['Connections', {text: count(sum(shards.items, one => one.connections)), href: '#connections'}],
    ['Tunnels', {text: count(sum(shards.items, one => one.tunnels && one.tunnels.outbound + one.tunnels.inbound)),
      sub: `${count(sum(shards.items, one => one.tunnels && one.tunnels.outbound))} outbound, ` +
        `${count(sum(shards.items, one => one.tunnels && one.tunnels.inbound))} inbound`}],
    ['Refused by policy', {text: count(sum(pods.items, one => one.denied)), href: '#ended?verdict=denied',
      sub: `${count(sum(pods.items, one => one.failed))} failed otherwise`}],
    ['Buffers', {text: bytes(sum(shards.items, one => one.bufferBytes))}],
    ['Certificates', {text: count(certificates.items.length), href: '#certificates',
      tone: wrong.length ? 'bad' : soon.length ? 'warn' : '',
      sub: first < Infinity ? `the first expires in ${span(Math.max(0, first))}` : ''}],
  ];
  const into = by('cards');
  cards.forEach(([name, value], at) => {
    let card = into.children[at];
    if (!card) {
      card = into.appendChild(document.createElement('div'));
      card.append(document.createElement('dt'), document.createElement('dd'));
    }
    card.firstChild.textContent = name;
    put(card.lastChild, value);
  });
  const notes = [
    ...status.pending.map(one => ({text: `Waiting for ${one.task}`, sub: one.reason, tone: 'bad'})),
    ...shards.items.filter(one => !one.answering)
      .map(one => ({text: `Shard ${one.shard} doesn't answer`, tone: 'bad'})),
    ...wrong.map(one => ({text: `No valid certificate: ${one.identity}`, sub: one.error || one.lastError,
      tone: 'bad'})),
    ...soon.map(one => ({text: `Certificate expires in ${span(one.remainingSeconds)}: ${one.identity}`,
      sub: one.lastError, tone: 'warn'})),
    ...pods.items.filter(one => one.state !== 'Up')
      .map(one => ({text: `Pod ${named(one)} is ${one.state}`, tone: 'warn'})),
    ...(status.eventLoopCause ? [{text: `The event loop is ${status.eventLoop}`, sub: status.eventLoopCause,
      tone: 'warn'}] : []),
  ];
  const rest = notes.length - ROWS;
  list(by('attention'), !notes.length ? ['Nothing.']
    : rest > 0 ? [...notes.slice(0, ROWS), `and ${count(rest)} more`] : notes);
}

// What each view asks for, and shows. `query` is the filter of its form.
const VIEWS = {
  async overview(signal, query, status) {
    const [state, ...answers] =
      await Promise.all([status, ...['shards', 'pods', 'certificates'].map(path => get(path, signal))]);
    overview(state, ...answers);
  },

  async pods(signal) {
    const answer = await get('pods', signal);
    table('pods', ['pod', 'pods'], answer.items.map(one => [
      {text: named(one), sub: one.uid, href: `#connections?pod=${encodeURIComponent(named(one))}`},
      one.serviceAccount, toned(one.state), count(one.connections), count(one.opened), count(one.denied),
      count(one.failed), bytes(one.bytesSent), bytes(one.bytesReceived),
      [...one.shards].sort((a, b) => a - b).join(', ')]));
    partial(answer);
  },

  async connections(signal, query) {
    query.set('limit', ROWS);
    const answer = await get(`connections?${query}`, signal);
    table('connections', ['connection', 'connections'], answer.items.map(one => [
      {text: named(one.pod), sub: [one.direction, one.state !== 'open' && one.state].filter(Boolean).join('\n')},
      party(one.source), party(one.destination, [one.hboneAddress && `for ${one.hboneAddress}`,
        one.originalDestination && `asked for ${one.originalDestination}`]),
      {text: one.service || '', sub: one.policy && `let in by ${one.policy}`},
      {text: one.protocol, sub: [one.via, `shard ${one.shard}`].filter(Boolean).join('\n')}, bytes(one.bytesSent),
      bytes(one.bytesReceived), one.ageMs === undefined ? '' : span(one.ageMs / 1000),
    ]), answer.total);
    partial(answer);
  },

  async ended(signal, query) {
    // One more than is shown tells whether there are more.
    query.set('last', ROWS + 1);
    const lines = (await ask(`flows?${query}`, signal)).split('\n').filter(Boolean).map(line => JSON.parse(line));
    const rows = lines.filter(one => one.time).reverse().map(one => [
      {text: moment(one.time), sub: one.pod && named(one.pod)}, {...toned(one.verdict), sub: one.direction},
      party(one.source), party(one.destination, [one.hboneAddress && `for ${one.hboneAddress}`, one.service]),
      {text: one.error || '', sub: one.attempts > 1 ? `${one.attempts} attempts` : ''}, bytes(one.bytesSent),
      bytes(one.bytesReceived), one.durationMs === undefined ? '' : span(one.durationMs / 1000)]);
    table('ended', ['connection', 'connections'], rows, Math.min(rows.length, ROWS), rows.length > ROWS);
  },

  async certificates(signal) {
    const answer = await get('certificates', signal);
    table('certificates', ['certificate', 'certificates'], answer.items.map(one => {
      const left = one.remainingSeconds;
      const roots = (one.roots || []).map(root => root.expirationTime).sort();
      return [one.identity, toned(one.state), one.expirationTime ? {text: moment(one.expirationTime),
        sub: left > 0 ? `in ${span(left)}` : 'expired',
        tone: left > 0 ? expiresSoon(one) ? 'warn' : '' : 'bad'} : '',
      moment(one.nextAttempt), one.serialNumber || '', moment(roots[0]),
      {text: one.error || one.lastError || '', tone: 'bad'}];
    }));
  },

  async policies(signal) {
    const answer = await get(`policies?limit=${ROWS}`, signal);
    table('policies', ['policy', 'policies'], answer.items.map(one => [named(one),
      {text: one.action, sub: one.dryRun ? 'dry run: decides nothing' : ''}, one.scope,
      {text: `${one.rules.length} ${one.rules.length === 1 ? 'rule' : 'rules'}`,
        sub: one.rules.slice(0, 8).map(rule => JSON.stringify(rule).slice(0, 500)).join('\n')}]), answer.total);
  },

  async shards(signal) {
    const answer = await get('shards', signal);
    const busy = load(answer.items);
    table('shards', ['shard', 'shards'], answer.items.map(one => [String(one.shard),
      one.answering ? {text: 'answers', tone: 'good'} : {text: "doesn't answer", tone: 'bad'}, one.eventLoop, busy(one),
      count(one.connections), count(one.pods), count(one.tunnels && one.tunnels.outbound),
      count(one.tunnels && one.tunnels.inbound), bytes(one.bufferBytes)]));
  },

  async logging(signal) {
    level(await ask('logging', signal, 'POST'));
  },

  async endpoints() {},
};

const level = said => { by('level-now').textContent = said.split('\n')[0].replace(/^current log level is /, ''); };

let turn = new AbortController(), timer, paused = false, view = 'overview';

function asked() {
  const [name, query] = location.hash.slice(1).split(/\?(.*)/s);
  return [Object.hasOwn(VIEWS, name) ? name : 'overview', new URLSearchParams(query)];
}

function show() {
  let query;
  [view, query] = asked();
  for (const part of document.querySelectorAll('main > section')) part.hidden = part.id !== view;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${view}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const form = by(view).querySelector('form');
  if (form && view !== 'logging') {
    for (const field of form.elements) if (field.name) field.value = query.get(field.name) || '';
  }
  // What another filter found must not stand below this one, should its answer not come.
  const part = by(view), own = part.querySelector('.stack table');
  if (own && part.dataset.query !== String(query)) {
    part.dataset.query = query;
    own.tBodies[0].replaceChildren();
    own.parentElement.hidden = true;
    part.querySelector('.count').textContent = '';
  }
  document.title = `${by(`${view}-head`).textContent} – Ringway admin`;
  refresh();
}

function trouble(errors) {
  const text = [...new Set(errors.map(error => error.message))].join('\n');
  by('trouble').hidden = !text;
  if (by('trouble').textContent !== text) by('trouble').textContent = text;
}

async function refresh() {
  clearTimeout(timer);
  turn.abort();
  turn = new AbortController();
  const signal = turn.signal;
  const status = get('status', signal);
  const done = await Promise.allSettled([status.then(head), VIEWS[view](signal, asked()[1], status)]);
  if (signal.aborted) return;
  const errors = done.map(one => one.reason).filter(Boolean);
  if (done[0].reason) badge('No answer', 'bad');
  trouble(errors);
  if (!errors.length) by('fresh').textContent = `as of ${new Date().toLocaleTimeString()}`;
  if (!paused && !document.hidden) timer = setTimeout(refresh, EVERY_MS);
}

async function change(query) {
  const said = by('level-said');
  said.hidden = false;
  try {
    said.textContent = await ask(`logging?${query}`, new AbortController().signal, 'POST');
    level(said.textContent);
  } catch (error) {
    said.textContent = error.message;
  }
}

for (const name of ['connections', 'ended']) {
  const form = by(name).querySelector('form');
  const go = query => { location.hash = `${name}${String(query) && `?${query}`}`; };
  form.addEventListener('submit', event => {
    event.preventDefault();
    const filled = [...new FormData(form)].map(([key, value]) => [key, value.trim()]).filter(([, value]) => value);
    go(new URLSearchParams(filled));
  });
  form.addEventListener('reset', () => go(''));
}
by('logging').querySelector('form').addEventListener('submit', event => {
  event.preventDefault();
  const filled = [...new FormData(event.target)].filter(([, value]) => value);
  change(new URLSearchParams(filled));
});
by('level-reset').addEventListener('click', () => change('reset'));
by('pause').addEventListener('click', () => {
  paused = !paused;
  by('pause').setAttribute('aria-pressed', paused);
  if (paused) clearTimeout(timer); else refresh();
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) clearTimeout(timer); else if (!paused) refresh();
});
addEventListener('hashchange', show);
document.querySelector('nav').hidden = by('pause').hidden = false;
show();
