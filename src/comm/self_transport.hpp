#pragma once

#include <memory>

#include "comm/transport.hpp"

namespace muonrt {

/// Creates a transport for a single rank. It copies the messages that the rank sends to itself, and
/// its reductions return their input.
std::unique_ptr<Transport> make_self_transport();

}  // namespace muonrt
