# The program, the libraries, and what `cmake --install` puts where.
pkg_check_modules(LIBCRYPTO REQUIRED IMPORTED_TARGET libcrypto)
target_link_libraries(ds_bench PUBLIC PkgConfig::LIBCRYPTO)

# The program carries the layers itself: it runs without the library.
file(GLOB cli_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
add_executable(dspark ${cli_sources})
target_link_libraries(dspark PRIVATE ds_bench)

# libdspark: every layer up to the engine.
get_property(layers GLOBAL PROPERTY DS_LAYERS)
list(REMOVE_ITEM layers ds_bench)
set(objects)
foreach(layer ${layers})
  get_target_property(type ${layer} TYPE)
  if(type STREQUAL STATIC_LIBRARY)
    list(APPEND objects $<TARGET_OBJECTS:${layer}>)
  endif()
endforeach()

add_library(dspark_shared SHARED ${objects})
set_target_properties(dspark_shared PROPERTIES OUTPUT_NAME dspark LINKER_LANGUAGE C
                      VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_libraries(dspark_shared PRIVATE textkit PkgConfig::JANSSON Threads::Threads m)
# Only what is marked DS_API leaves the library: nothing of the archives inside it does.
target_link_options(dspark_shared PRIVATE LINKER:--exclude-libs,ALL)

add_library(dspark_static STATIC ${objects})
set_target_properties(dspark_static PROPERTIES OUTPUT_NAME dspark LINKER_LANGUAGE C)

set(man_page ${CMAKE_BINARY_DIR}/dspark.1)
add_custom_command(OUTPUT ${man_page} COMMAND dspark --dump-man > ${man_page} DEPENDS dspark
                   COMMENT "dspark.1" VERBATIM)
add_custom_target(dspark_man ALL DEPENDS ${man_page})

# Everything that is installed, and no tests.
add_custom_target(product DEPENDS dspark dspark_shared dspark_static dspark_man)

# Paths relative to the .pc file: an installed tree may be moved.
file(RELATIVE_PATH pc_prefix /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
string(REGEX REPLACE "/$" "" pc_prefix "${pc_prefix}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/dspark.pc.in ${CMAKE_BINARY_DIR}/dspark.pc @ONLY)

install(TARGETS dspark RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS dspark_shared dspark_static
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${TEXTKIT_LIB} DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME libdspark_textkit.a)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/dspark DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/dspark.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${man_page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
