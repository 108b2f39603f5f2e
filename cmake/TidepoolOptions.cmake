# The options, and what every target of this project is compiled with.

option(BUILD_SHARED_LIBS "Build shared libraries" OFF)
option(TIDEPOOL_INSTALL "Install the library and its CMake package" ${PROJECT_IS_TOP_LEVEL})
option(TIDEPOOL_BUILD_TOOLS "Build the tools: tidepool-inspect" ${PROJECT_IS_TOP_LEVEL})
option(TIDEPOOL_BUILD_TESTS "Build the tests (needs GoogleTest)" OFF)
option(TIDEPOOL_BUILD_BENCH "Build the benchmarks (needs Google Benchmark)" OFF)
option(TIDEPOOL_BUILD_EXAMPLES "Build the examples" OFF)
option(TIDEPOOL_CUDA "Build the CUDA component" OFF)
option(TIDEPOOL_SPDLOG "Compile the adapter from Observer to spdlog into the core" OFF)
option(TIDEPOOL_WERROR "Treat warnings as errors" OFF)
option(TIDEPOOL_PCH "Precompile the heavy headers: Abseil's status and GoogleTest" OFF)
option(TIDEPOOL_COVERAGE "Instrument for gcov" OFF)
set(TIDEPOOL_URING AUTO CACHE STRING "Build the io_uring component: AUTO, ON or OFF")
set_property(CACHE TIDEPOOL_URING PROPERTY STRINGS AUTO ON OFF)
set(TIDEPOOL_SANITIZE "" CACHE STRING "Sanitizers as a list, such as address;undefined")

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Directory-wide, because objects with and without a sanitizer must not be mixed in one program.
if(TIDEPOOL_SANITIZE)
  list(JOIN TIDEPOOL_SANITIZE "," sanitizers)
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
  # GCC 12 reports uninitialized uses that only its own instrumentation introduces.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endif()
if(TIDEPOOL_COVERAGE)
  add_compile_options(--coverage)
  add_link_options(--coverage)
endif()

# C++20 and warnings; for libraries, tests, benchmarks and examples alike.
function(tidepool_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # No -Wmissing-field-initializers: options structs are meant to be filled by designated
  # initializers, and the fields left out have defaults.
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wundef -Wextra-semi
    -Wno-missing-field-initializers)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    COMPILE_WARNING_AS_ERROR ${TIDEPOOL_WERROR})
endfunction()

# What a library of the package needs besides.
#
#   tidepool_library(<target> COMPONENT <name> SOURCES <file>... HEADERS <file>...)
#
# makes <target>, known here and to users as tidepool::<name>.
function(tidepool_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "COMPONENT" "SOURCES;HEADERS")
  add_library(${target} ${arg_SOURCES})
  add_library(tidepool::${arg_COMPONENT} ALIAS ${target})
  tidepool_target_defaults(${target})
  target_sources(${target} PUBLIC
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include FILES ${arg_HEADERS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_include_directories(${target} SYSTEM PRIVATE ${TIDEPOOL_XXHASH_INCLUDE_DIR})
  target_compile_options(${target} PRIVATE -fno-exceptions -Wconversion -Wno-sign-conversion)
  if(TIDEPOOL_PCH AND arg_COMPONENT STREQUAL "core")
    target_precompile_headers(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include/tidepool/status.h)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    # A user's own shared library that links us must not export our symbols again.
    target_compile_definitions(${target} PUBLIC TIDEPOOL_STATIC_DEFINE)
  endif()
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${arg_COMPONENT}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    INSTALL_RPATH "$ORIGIN"
    VERIFY_INTERFACE_HEADER_SETS ${PROJECT_IS_TOP_LEVEL})
  if(TIDEPOOL_INSTALL)
    install(TARGETS ${target}
      EXPORT tidepool-${arg_COMPONENT}
      FILE_SET HEADERS)
  endif()
endfunction()
