"""The APIs of Anthropic. Each module declares a dialect, except:

messages_writer    stream a whole message
"""
