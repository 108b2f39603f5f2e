# Each layer of the library includes only itself and lower ones (docs/design.md). A header and its
# source share a layer; a file that matches no line of the table fails the test, so that a new one
# gets a place.

# layer | path below include/tidepool/ or src/, without extension
set(layers
  "0|types|status|clock|version|export|annotated_mutex|str_cat|time_math|zeroed_array|decision_hash"
  "1|scheduling_signals|block|lifecycle|tier|kv_layout|observer"
  "2|prefix_index.*|digest|block_.+|slot_allocator|recency_log|event_log"
  "2|estimators|session_model|session_ranking.*"
  "2|eviction_policy|codec|transfer/.*|uring/.*"
  "3|policy/.*|tide/.*"
  "4|built_in_policies|kv_cache_manager|manager/.*|sequence|admission|input_log"
  "5|tidepool|testing/.*|spdlog/.*|tools/.*")

# Third-party headers, and the only places that may include them.
set(third_party
  "absl/synchronization/|nowhere"
  "absl/|include/tidepool/status\\.h|src/.*"
  "cuda|cuda/.*"
  "liburing|src/uring/.*"
  "spdlog/|src/spdlog/.*"
  "fmt/|src/spdlog/.*"
  "xxhash|src/.*"
  "gtest/|include/tidepool/testing/.*|src/testing/.*"
  "gmock/|include/tidepool/testing/.*|src/testing/.*")

set(problems "")

# Sets `out` to the layer of `stem`, or to "" if it has none.
function(layer_of stem out)
  set(${out} "" PARENT_SCOPE)
  foreach(line IN LISTS layers)
    string(REGEX MATCH "^([0-9])\\|(.*)$" _ "${line}")
    set(layer ${CMAKE_MATCH_1})
    set(pattern "${CMAKE_MATCH_2}")
    if(stem MATCHES "^(${pattern})$")
      set(${out} ${layer} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# Private headers may be named from the root, from src/ or from the includer's own directory.
function(resolve file header out)
  cmake_path(GET file PARENT_PATH directory)
  set(${out} ${header} PARENT_SCOPE)
  foreach(candidate IN ITEMS ${directory}/${header} src/${header})
    if(NOT header MATCHES "^(tidepool|src)/" AND EXISTS ${SOURCE_DIR}/${candidate})
      set(${out} ${candidate} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

# "include/tidepool/policy/lru.h" and "src/policy/lru.cc" both become "policy/lru".
function(stem_of path out)
  string(REGEX REPLACE "^(include/tidepool|src|tidepool)/" "" stem "${path}")
  string(REGEX REPLACE "\\.(h|cc)$" "" stem "${stem}")
  set(${out} "${stem}" PARENT_SCOPE)
endfunction()

function(check_third_party file header)
  foreach(line IN LISTS third_party)
    string(REGEX MATCH "^([^|]*)\\|(.*)$" _ "${line}")
    set(prefix "${CMAKE_MATCH_1}")
    set(allowed "${CMAKE_MATCH_2}")
    if(header MATCHES "^${prefix}")
      if(NOT file MATCHES "^(${allowed})$")
        set(problems ${problems} "${file} must not include ${header}" PARENT_SCOPE)
      endif()
      return()
    endif()
  endforeach()
endfunction()

file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}
  ${SOURCE_DIR}/include/*.h ${SOURCE_DIR}/src/*.h ${SOURCE_DIR}/src/*.cc)
list(LENGTH files count)
if(count LESS 10)
  message(FATAL_ERROR "only ${count} files below ${SOURCE_DIR}: wrong directory?")
endif()

foreach(file IN LISTS files)
  stem_of(${file} stem)
  layer_of(${stem} layer)
  if(layer STREQUAL "")
    list(APPEND problems "${file} has no layer: add it to tests/layers_test.cmake")
    continue()
  endif()

  file(STRINGS ${SOURCE_DIR}/${file} includes REGEX "^[ \t]*#[ \t]*include[ \t]*[<\"]")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^[^<\"]*[<\"]([^>\"]*)[>\"].*$" "\\1" header "${line}")
    resolve(${file} ${header} header)
    if(NOT header MATCHES "^(tidepool|src)/")
      check_third_party(${file} ${header})
      continue()
    endif()
    if(file MATCHES "^include/" AND header MATCHES "^src/")
      list(APPEND problems "${file} is public and must not include ${header}")
    endif()

    stem_of(${header} included_stem)
    layer_of(${included_stem} included_layer)
    if(included_layer STREQUAL "")
      list(APPEND problems "${file} includes ${header}, which has no layer")
    elseif(included_layer GREATER layer)
      list(APPEND problems
        "${file} (L${layer}) must not include ${header} (L${included_layer})")
    elseif(layer EQUAL 3 AND included_layer EQUAL 3)
      # Policies and tide do not know each other, nor one policy the next.
      set(both "${stem} ${included_stem}")
      if(NOT stem STREQUAL included_stem AND NOT both MATCHES "^tide/.* tide/")
        list(APPEND problems "${file} must not include its sibling ${header}")
      endif()
    endif()
  endforeach()
endforeach()

if(problems)
  list(JOIN problems "\n  " problems)
  message(FATAL_ERROR "layers are broken:\n  ${problems}")
endif()
message(STATUS "${count} files keep to their layers")
