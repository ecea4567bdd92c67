# Finds a CUDA toolkit that works, and compiles kernels with it. CMake's own CUDA language is not used: it
# would test nvcc in every configuration, and hand our warnings and sanitizers to nvcc's device passes and the
# whole link of a C program to nvcc.
#
# Sets MILLRACE_CUDA_FOUND. With MILLRACE_CUDA=AUTO a missing or broken toolkit means: no CUDA backend; with
# ON it is an error.

# Ampere and Hopper as machine code, and Hopper's PTX, which the driver compiles for later cards.
set(MILLRACE_CUDA_CODE -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90])

# Whether nvcc compiles a kernel with the host compiler it finds. Asked once for each nvcc.
function(millrace_cuda_check result)
  if(NOT MILLRACE_CUDA_CHECKED STREQUAL CUDAToolkit_NVCC_EXECUTABLE)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/check.cu "__global__ void check(int *to) { *to = 1; }\n")
    execute_process(
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} ${MILLRACE_CUDA_CODE} -c check.cu -o check.o
      WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
      RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT status EQUAL 0)
      message(STATUS "CUDA: ${CUDAToolkit_NVCC_EXECUTABLE} fails: ${output}")
      set(${result} NO PARENT_SCOPE)
      return()
    endif()
    set(MILLRACE_CUDA_CHECKED ${CUDAToolkit_NVCC_EXECUTABLE} CACHE INTERNAL "The nvcc that was tried")
  endif()
  set(${result} YES PARENT_SCOPE)
endfunction()

# millrace_cuda_object(<source.cu>): compiles it to <source.cu>.o in the current binary directory.
function(millrace_cuda_object source)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++17 -O2 -g -lineinfo ${MILLRACE_CUDA_CODE}
      -Werror all-warnings -Xcompiler=-Wall,-Wextra,-fPIC,-fno-exceptions,-fno-threadsafe-statics
      -I${PROJECT_SOURCE_DIR} -MD -MF ${object}.d -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
    DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
    DEPFILE ${object}.d
    COMMENT "Compiling ${source} for the GPU"
    VERBATIM)
  set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
endfunction()

set(MILLRACE_CUDA_FOUND NO)
if(MILLRACE_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (MILLRACE_CUDA); GPUs are emulated only")
  return()
endif()
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cudart_static)
  millrace_cuda_check(MILLRACE_CUDA_FOUND)
endif()
if(MILLRACE_CUDA_FOUND)
  message(STATUS "CUDA: ${CUDAToolkit_VERSION}, kernels for sm_80, sm_90 and later (${CUDAToolkit_NVCC_EXECUTABLE})")
elseif(MILLRACE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "MILLRACE_CUDA is ON, but no nvcc with a static CUDA runtime works here; put nvcc on the PATH, "
    "or set CUDAToolkit_ROOT, or MILLRACE_CUDA=OFF")
else()
  message(STATUS "CUDA: no nvcc that works; GPUs are emulated only")
endif()
