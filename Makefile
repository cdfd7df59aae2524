# Short names for what scripts/ and the CMake presets do; packagers call those directly.
.PHONY: all run test install clean

all: ## build the release binary
	@scripts/setup.sh build
	@PATH="$$PATH:$$HOME/.cargo/bin" cmake --preset release >/dev/null
	@PATH="$$PATH:$$HOME/.cargo/bin" cmake --build --preset release --target product

run: all ## fetch the demo model, answer a prompt plain and speculative
	@scripts/run.sh

test: ## install what tests need, build, run every test (release and sanitizers)
	@scripts/setup.sh test
	@mkdir -p build
	@scripts/test.sh

install: all ## install the release build (DESTDIR and cmake's --prefix work as usual)
	@cmake --install build/release

clean:
	rm -rf build
