// The end of a search: a moment on a clock that never goes back.
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace downset {

// Set from the moment at which a user ends all searches of this process; it may be set while they run.
inline std::atomic<bool> interrupted{false};

class Deadline {
public:
    // `seconds` from now: at once if they are not above 0, never if they are infinite.
    explicit Deadline(double seconds) {
        if (std::isnan(seconds)) throw std::invalid_argument("time limit: not a number of seconds");
        at_ += std::chrono::duration<double>(seconds);
    }
    bool passed() const { return interrupted.load(std::memory_order_relaxed) || Clock::now() > at_; }

private:
    using Clock = std::chrono::steady_clock;
    // Seconds as double: what is added to them cannot overflow.
    std::chrono::time_point<Clock, std::chrono::duration<double>> at_ = Clock::now();
};

}  // namespace downset
