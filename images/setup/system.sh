#!/bin/sh
# The system's part of an image: certificate authorities, the Debian packages that are named here and missing, a user.
# Nothing is fetched where nothing is missing, so that a base that has all of it needs no network.
set -eu
authorities=/usr/local/share/ca-certificates/extra
bundle=/etc/ssl/certs/ca-certificates.crt

has() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

missing=""
for package in bash ca-certificates "$@"; do
  has "$package" || missing="$missing $package"
done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3 python3-venv"
if [ "${SUDO:-no}" = yes ]; then
  has sudo || missing="$missing sudo"
fi

if [ -n "$missing" ]; then
  echo "Debian packages to install:$missing"
  # Mirrors behind a private authority have to be trusted before ca-certificates is there to do it.
  cat "$bundle" "$authorities"/*.crt >/tmp/trusted.pem 2>/dev/null || true
  export DEBIAN_FRONTEND=noninteractive
  options=""
  [ ! -s /tmp/trusted.pem ] || options="-o Acquire::https::CAInfo=/tmp/trusted.pem"
  # shellcheck disable=SC2086 # words on purpose
  apt-get $options -qq update
  # shellcheck disable=SC2086
  apt-get $options -qq install -y --no-install-recommends $missing >/dev/null
  rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /tmp/trusted.pem
fi
update-ca-certificates 2>/dev/null

# Charts show Chinese, Japanese and Korean where a font for them is installed: matplotlib takes each sign from the first that has it.
if has fonts-wqy-microhei; then
  echo 'font.family: DejaVu Sans, WenQuanYi Micro Hei' >/etc/matplotlibrc
fi

# Any other user id works as well; this one is for those who start the image without naming one.
getent group 1000 >/dev/null || groupadd --gid 1000 kernel
getent passwd 1000 >/dev/null || useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash kernel
if [ "${SUDO:-no}" = yes ]; then
  echo 'ALL ALL=(ALL:ALL) NOPASSWD: ALL' >/etc/sudoers.d/kernelexec
  chmod 0440 /etc/sudoers.d/kernelexec
fi
mkdir -p /workspace
chmod 1777 /workspace

# The root is read-only when kernels run: what is not compiled now is compiled at every start. Some bases ship none of it.
python3 -m compileall -q -x '/(test|tests|idlelib|turtledemo|lib2to3|site-packages|dist-packages)/' \
  "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" >/dev/null || true
