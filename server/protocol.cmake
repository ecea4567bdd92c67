# The codec of the wire protocol, a library of its own: server and client both stand on it, and the client
# must not need the server.
add_library(millrace_protocol STATIC ${CMAKE_CURRENT_LIST_DIR}/protocol.c)
target_link_libraries(millrace_protocol PUBLIC millrace_options millrace_core)
set_target_properties(millrace_protocol PROPERTIES POSITION_INDEPENDENT_CODE ON)
