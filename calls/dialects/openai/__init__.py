"""The APIs of OpenAI, and of the many services that copy them. Each module declares a dialect, except:

chat_writer            stream a whole chat completion
responses_writer       stream a whole response
compatible_services    the hosts of services that copy OpenAI's API
"""
