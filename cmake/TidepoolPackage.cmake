# Installation: one export set per component, the CMake package (also usable from the build tree)
# and pkg-config files.

include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tidepool)

# 0.x: a new minor version may break its users, so only the same minor satisfies a request.
configure_file(cmake/tidepool-config.cmake.in tidepool-config.cmake @ONLY)
write_basic_package_version_file(tidepool-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/FindLibUring.cmake FindLibUring.cmake COPYONLY)
install(FILES
  ${PROJECT_BINARY_DIR}/tidepool-config.cmake
  ${PROJECT_BINARY_DIR}/tidepool-config-version.cmake
  cmake/FindLibUring.cmake
  DESTINATION ${package_dir})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# pkg-config: from ${libdir}/pkgconfig back to the prefix, so that the tree can be moved.
file(RELATIVE_PATH pc_up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" pc_up "${pc_up}")
set(pc_requires_private "absl_flat_hash_map absl_flat_hash_set")
if(NOT BUILD_SHARED_LIBS)
  # The only library is a static one: a plain --libs has to name what it needs.
  set(pc_requires "${pc_requires_private}")
  set(pc_libs "-pthread")
  set(pc_cflags "-DTIDEPOOL_STATIC_DEFINE")
endif()

foreach(component IN ITEMS core uring testing)
  string(REPLACE "tidepool_core" "tidepool" target tidepool_${component})
  if(NOT TARGET ${target})
    file(REMOVE ${PROJECT_BINARY_DIR}/tidepool-${component}-targets.cmake) # of an earlier configure
    continue()
  endif()
  install(EXPORT tidepool-${component}
    NAMESPACE tidepool::
    FILE tidepool-${component}-targets.cmake
    DESTINATION ${package_dir})
  export(EXPORT tidepool-${component}
    NAMESPACE tidepool::
    FILE ${PROJECT_BINARY_DIR}/tidepool-${component}-targets.cmake)
  if(NOT component STREQUAL "testing")
    configure_file(cmake/${target}.pc.in ${target}.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/${target}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  endif()
endforeach()
