# The Rust glue (tokenizer, templates, constraints) as one static library, built once for all presets.
find_program(CARGO cargo HINTS $ENV{HOME}/.cargo/bin REQUIRED)
set(DSPARK_CARGO_TARGET "${CMAKE_SOURCE_DIR}/build/cargo" CACHE PATH "cargo's build folder, shared by the presets")
set(TEXTKIT_LIB ${DSPARK_CARGO_TARGET}/release/libtextkit.a)
file(GLOB_RECURSE TEXTKIT_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/ext/textkit/src/*.rs)
add_custom_command(
  OUTPUT ${TEXTKIT_LIB}
  COMMAND ${CARGO} build --release --locked --quiet --manifest-path ${CMAKE_SOURCE_DIR}/ext/textkit/Cargo.toml
          --target-dir ${DSPARK_CARGO_TARGET}
  DEPENDS ${TEXTKIT_SOURCES} ${CMAKE_SOURCE_DIR}/ext/textkit/Cargo.toml ${CMAKE_SOURCE_DIR}/ext/textkit/Cargo.lock
  COMMENT "cargo: ext/textkit" VERBATIM)
add_custom_target(textkit_build DEPENDS ${TEXTKIT_LIB})
add_library(textkit INTERFACE)
add_dependencies(textkit textkit_build)
target_include_directories(textkit INTERFACE ${CMAKE_SOURCE_DIR}/ext/textkit)
target_link_libraries(textkit INTERFACE ${TEXTKIT_LIB} m pthread dl)
