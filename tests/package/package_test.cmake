# One case of the package tests (see CMakeLists.txt), run as `cmake -DCASE=... -P` by ctest.

# run(<command>...) fails the test with the command's output unless it succeeds.
function(run)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
endfunction()

# fails_with(<regex> <command>...) wants the command to fail and to say why.
function(fails_with regex)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(result EQUAL 0)
    message(FATAL_ERROR "should have failed:\n${output}")
  elseif(NOT output MATCHES "${regex}")
    message(FATAL_ERROR "failed, but without saying \"${regex}\":\n${output}")
  endif()
endfunction()

set(binary_dir ${WORK_DIR}/build)
set(configure ${CMAKE_COMMAND} --fresh -G Ninja -B ${binary_dir}
  -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_BUILD_TYPE=Debug
  -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DTIDEPOOL_PCH=ON)  # a build is what is tested
set(build ${CMAKE_COMMAND} --build ${binary_dir})
set(with_prefix -DCMAKE_PREFIX_PATH=${PREFIX})
set(strangers ${SOURCE_DIR}/tests/package)
# Libraries keep their objects between runs; strangers start afresh.
if(NOT CASE MATCHES "^(install_shared|subdirectory)$")
  file(REMOVE_RECURSE ${WORK_DIR})
endif()

if(CASE STREQUAL "install_static")
  file(REMOVE_RECURSE ${PREFIX})
  run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${PREFIX})

elseif(CASE STREQUAL "install_shared")
  file(REMOVE_RECURSE ${PREFIX})
  run(${configure} -S ${SOURCE_DIR} -DBUILD_SHARED_LIBS=ON)
  run(${build})
  run(${CMAKE_COMMAND} --install ${binary_dir} --prefix ${PREFIX})

elseif(CASE STREQUAL "find_package")
  run(${configure} -S ${strangers}/stranger ${with_prefix})
  run(${build})
  run(${binary_dir}/stranger)

elseif(CASE STREQUAL "tools")
  # On a file of the fuzzer's corpus; finds its libraries without help.
  run(${PREFIX}/bin/tidepool-inspect stats ${SOURCE_DIR}/tests/fuzz/corpus/slot_file/sound)

elseif(CASE STREQUAL "build_tree")
  run(${configure} -S ${strangers}/stranger -Dtidepool_DIR=${BUILD_DIR})
  run(${build})
  run(${binary_dir}/stranger)

elseif(CASE STREQUAL "subdirectory")
  # As on a machine that has none of them: anything that still looks for one fails.
  run(${configure} -S ${strangers}/subdirectory -DTIDEPOOL_SOURCE_DIR=${SOURCE_DIR}
    -DCMAKE_DISABLE_FIND_PACKAGE_LibUring=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_spdlog=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON)
  run(${build})
  run(${binary_dir}/stranger)

elseif(CASE STREQUAL "pkg_config")
  find_program(pkg_config pkg-config REQUIRED)
  file(GLOB_RECURSE pc_file ${PREFIX}/tidepool.pc)
  cmake_path(GET pc_file PARENT_PATH pc_dir)
  set(ENV{PKG_CONFIG_PATH} ${pc_dir})
  execute_process(COMMAND ${pkg_config} --cflags --libs tidepool
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  cmake_path(GET pc_dir PARENT_PATH lib_dir)
  file(MAKE_DIRECTORY ${WORK_DIR})
  run(${CXX_COMPILER} -std=c++20 -o ${WORK_DIR}/stranger ${strangers}/stranger/main.cc
    ${strangers}/stranger/other.cc ${flags} -Wl,-rpath,${lib_dir})
  run(${WORK_DIR}/stranger)

elseif(CASE STREQUAL "components")
  run(${configure} -S ${strangers}/component ${with_prefix} "-DCOMPONENTS=core\\;testing")

elseif(CASE STREQUAL "unknown_component")
  fails_with("tidepool has no component 'lasers' \\(there are: core, uring, testing\\)"
    ${configure} -S ${strangers}/component ${with_prefix} -DCOMPONENTS=lasers)

elseif(CASE STREQUAL "missing_component")
  # An installation without the component, as TIDEPOOL_URING=OFF leaves it.
  file(COPY ${PREFIX}/ DESTINATION ${WORK_DIR}/prefix)
  file(GLOB_RECURSE uring ${WORK_DIR}/prefix/tidepool-uring-*)
  file(REMOVE ${uring})
  set(with_prefix -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix)
  fails_with("tidepool's component 'uring' was not built in this installation"
    ${configure} -S ${strangers}/component ${with_prefix} -DCOMPONENTS=uring)
  run(${configure} -S ${strangers}/stranger ${with_prefix})

elseif(CASE STREQUAL "wrong_version")
  file(WRITE ${WORK_DIR}/CMakeLists.txt
    "cmake_minimum_required(VERSION 3.25)\nproject(newer LANGUAGES CXX)\n"
    "find_package(tidepool 99.0 CONFIG REQUIRED)\n")
  fails_with("compatible with requested version \"99.0\""
    ${configure} -S ${WORK_DIR} ${with_prefix})

elseif(CASE STREQUAL "example")
  run(${configure} -S ${SOURCE_DIR}/examples/${EXAMPLE} ${with_prefix})
  run(${build})
  if(NOT EXAMPLE STREQUAL "agent_replay") # the main job has tests of its own
    run(${CMAKE_COMMAND} -E chdir ${WORK_DIR} ${binary_dir}/${EXAMPLE})
  endif()
  if(EXAMPLE STREQUAL "custom_policy") # and the installed conformance suite
    run(${CMAKE_COMMAND} -E chdir ${WORK_DIR} ${binary_dir}/custom_policy_test)
  endif()

else()
  message(FATAL_ERROR "unknown case '${CASE}'")
endif()
