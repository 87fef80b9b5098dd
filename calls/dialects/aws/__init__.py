"""The APIs of AWS. Each module declares a dialect, except:

bedrock_text_models    the bodies of the models behind InvokeModel
converse_writer        stream a whole turn of Converse
"""
