/* What Millrace uses of CUDA's runtime interface, by CUDA's own names and values: with this folder before any
 * toolkit's, the CUDA sources compile where there is none, and run on the runtime of fake.h. Where there is a
 * toolkit, its functions are compiled with CUDA's own header too: what differs from it does not compile. */
#ifndef MILLRACE_TESTS_CUDA_RUNTIME_API_H
#define MILLRACE_TESTS_CUDA_RUNTIME_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDART_VERSION 13000
#define CUDARTAPI
#define CUDART_CB

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorHostMemoryNotRegistered = 713,
    cudaErrorNotPermitted = 800,
    cudaErrorUnknown = 999,
} cudaError_t;

enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

/* Flags. */
#define cudaDeviceScheduleBlockingSync 0x04
#define cudaInitDeviceFlagsAreValid    0x01
#define cudaHostRegisterDefault        0x00
#define cudaHostAllocMapped            0x02
#define cudaStreamNonBlocking          0x01
#define cudaEventDefault               0x00
#define cudaEventDisableTiming         0x02
#define cudaEventWaitDefault           0x00

typedef struct CUuuid_st {
    char bytes[16];
} cudaUUID_t;

struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int multiProcessorCount;
    int asyncEngineCount;
};

struct cudaFuncAttributes {
    size_t sharedSizeBytes;
    size_t localSizeBytes;
    int numRegs;
};

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef void(CUDART_CB *cudaHostFn_t)(void *argument);

cudaError_t CUDARTAPI cudaDriverGetVersion(int *version);
cudaError_t CUDARTAPI cudaGetDeviceCount(int *count);
cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device);
cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char *text, int size, int device);
cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned flags, unsigned how);
cudaError_t CUDARTAPI cudaSetDevice(int device);
cudaError_t CUDARTAPI cudaGetDevice(int *device);
cudaError_t CUDARTAPI cudaDeviceSynchronize(void);

cudaError_t CUDARTAPI cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t CUDARTAPI cudaHostUnregister(void *memory);
cudaError_t CUDARTAPI cudaHostAlloc(void **memory, size_t bytes, unsigned flags);
cudaError_t CUDARTAPI cudaFreeHost(void *memory);
cudaError_t CUDARTAPI cudaHostGetDevicePointer(void **on_card, void *memory, unsigned flags);
cudaError_t CUDARTAPI cudaMalloc(void **memory, size_t bytes);
cudaError_t CUDARTAPI cudaFree(void *memory);
cudaError_t CUDARTAPI cudaMemset(void *memory, int value, size_t bytes);
cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t CUDARTAPI cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                      cudaStream_t stream);

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream);
cudaError_t CUDARTAPI cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument);
cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t CUDARTAPI cudaEventDestroy(cudaEvent_t event);
cudaError_t CUDARTAPI cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t event);
cudaError_t CUDARTAPI cudaEventSynchronize(cudaEvent_t event);
cudaError_t CUDARTAPI cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t CUDARTAPI cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel);
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel,
                                                                    int block_threads, size_t shared_bytes);

cudaError_t CUDARTAPI cudaGetLastError(void);
const char *CUDARTAPI cudaGetErrorName(cudaError_t error);
const char *CUDARTAPI cudaGetErrorString(cudaError_t error);

#ifdef __cplusplus
}
#endif

#endif
