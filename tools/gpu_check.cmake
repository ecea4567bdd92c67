# gpu_check: the folder build/static/gpu-check, all that tools/gpu-check needs on a machine that has a GPU and
# nothing else: stripped programs, shipped profiles and workloads, and the script.
set(folder ${PROJECT_BINARY_DIR}/gpu-check)
set(programs millrace-bench millrace-gpu millraced millrace-gen)
set(extra "")
if(TARGET millrace_gpu_cuda)
  pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka)
  find_library(cmocka_file NAMES libcmocka.so.0 HINTS ${cmocka_LIBRARY_DIRS} REQUIRED) # Debian has no static one
  get_filename_component(cmocka_real ${cmocka_file} REALPATH)
  add_executable(test_gpu_launch tests/gpu/test_gpu_launch.c tests/support/gpu_batch.c)
  target_compile_definitions(test_gpu_launch PRIVATE MILLRACE_HAS_CUDA)
  target_link_libraries(test_gpu_launch PRIVATE millrace_options millrace_gpu_cuda millrace_gpu millrace_core
    dep_crypto PkgConfig::cmocka Threads::Threads)
  set_target_properties(test_gpu_launch PROPERTIES BUILD_RPATH "\$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
  list(APPEND programs test_gpu_launch)
  set(extra COMMAND ${CMAKE_COMMAND} -E copy ${cmocka_real} ${folder}/bin/libcmocka.so.0)
endif()

set(copies "")
foreach(program IN LISTS programs)
  list(APPEND copies COMMAND ${CMAKE_STRIP} -o ${folder}/bin/${program} $<TARGET_FILE:${program}>)
endforeach()
add_custom_target(gpu_check ALL
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${folder}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}/bin ${folder}/share/millrace
  ${copies}
  ${extra}
  COMMAND ${CMAKE_COMMAND} -E copy_directory ${PROJECT_SOURCE_DIR}/config/profiles ${folder}/share/millrace/profiles
  COMMAND ${CMAKE_COMMAND} -E copy_directory ${PROJECT_SOURCE_DIR}/config/workloads ${folder}/share/millrace/workloads
  COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/tools/gpu-check ${folder}/gpu-check
  COMMAND ${folder}/gpu-check --weigh ${folder}
  DEPENDS ${programs}
  COMMENT "Putting together what tools/gpu-check needs"
  VERBATIM)
