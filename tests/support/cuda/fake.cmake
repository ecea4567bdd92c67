# gpu_cuda_fake: the CUDA backend on the runtime of fake.h; millrace-gpu-fake: the program with it.
set(cuda_folder ${CMAKE_CURRENT_LIST_DIR})
list(TRANSFORM MILLRACE_CUDA_SOURCES PREPEND ${PROJECT_SOURCE_DIR}/gpu/ OUTPUT_VARIABLE cuda_sources)
set(cuda_kernels ${cuda_sources})
list(FILTER cuda_kernels INCLUDE REGEX "\\.cu$")
list(FILTER cuda_sources EXCLUDE REGEX "\\.cu$")

# A .cu file is C++ for the compiler of everything else, with its flags: those of sanitizers and counters hold for
# C++ as well. CMake takes it for C.
function(millrace_cuda_fake_kernels)
  unset(CMAKE_C_STANDARD)
  unset(CMAKE_C_EXTENSIONS)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE C)
  add_library(gpu_cuda_fake_kernels OBJECT ${ARGN})
  target_compile_options(gpu_cuda_fake_kernels PRIVATE -x c++ -std=c++17 -include cuda_runtime.h
    -Wall -Wextra -Werror -Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics
    -fno-omit-frame-pointer)
  if(MILLRACE_SANITIZE)
    target_compile_options(gpu_cuda_fake_kernels PRIVATE -fsanitize=${MILLRACE_SANITIZE} -fno-sanitize-recover=all)
  endif()
  target_include_directories(gpu_cuda_fake_kernels PRIVATE ${cuda_folder} ${PROJECT_SOURCE_DIR})
endfunction()
millrace_cuda_fake_kernels(${cuda_kernels})

file(GLOB cuda_fake_sources CONFIGURE_DEPENDS ${cuda_folder}/*.c)
add_library(gpu_cuda_fake STATIC ${cuda_fake_sources} ${cuda_sources} $<TARGET_OBJECTS:gpu_cuda_fake_kernels>)
target_include_directories(gpu_cuda_fake BEFORE PUBLIC ${cuda_folder})
target_link_libraries(gpu_cuda_fake PUBLIC millrace_options millrace_gpu Threads::Threads)
target_link_options(gpu_cuda_fake PUBLIC -Wl,--wrap=dlopen -Wl,--wrap=dlclose)

add_executable(millrace-gpu-fake ${PROJECT_SOURCE_DIR}/gpu/main.c)
target_compile_definitions(millrace-gpu-fake PRIVATE MILLRACE_CUDA)
target_link_libraries(millrace-gpu-fake PRIVATE millrace_gpu_child gpu_cuda_fake)

# Where there is a toolkit: whether its header agrees with ours.
if(TARGET millrace_gpu_cuda)
  add_library(gpu_cuda_fake_check OBJECT ${cuda_fake_sources})
  target_link_libraries(gpu_cuda_fake_check PRIVATE millrace_options millrace_gpu_cuda)
endif()
